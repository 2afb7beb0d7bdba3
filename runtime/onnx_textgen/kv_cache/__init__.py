"""Keys, values and recurrent states of rows, and the memory that they take."""
