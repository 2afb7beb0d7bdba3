"""Which numbers round a decoder best: what its layers see on real text, and how much an error there moves its predictions."""
