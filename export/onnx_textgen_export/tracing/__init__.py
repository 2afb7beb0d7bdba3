"""From what the user names to a module, and from the module to its graph."""
