"""Models that read images: their image processor as a graph, the vision part as a graph, and the proof of both."""
