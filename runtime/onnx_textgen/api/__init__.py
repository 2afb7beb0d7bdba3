"""The objects that a program works with, a model and a conversation, and the functions that open them."""
