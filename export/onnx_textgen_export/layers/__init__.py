"""transformers' layers as the tracer runs them: attention, experts and recurrent layers over a cache."""
