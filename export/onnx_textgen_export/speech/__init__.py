"""Models that read sound: from samples to features as a graph, and what a package says of both."""
