"""The objects that a program works with, a model and a session, and the functions that open them."""
