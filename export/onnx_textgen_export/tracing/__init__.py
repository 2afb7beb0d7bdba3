"""From a module to its graph."""
