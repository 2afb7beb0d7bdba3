"""A file for each tab of the page: its controls, and the functions that answer them."""
