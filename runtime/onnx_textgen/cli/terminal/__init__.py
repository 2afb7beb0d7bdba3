"""Writing to a terminal and reading from it."""
