"""The engines that run a graph."""
