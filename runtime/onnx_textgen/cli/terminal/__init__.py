"""What is written on a terminal and read from it."""
