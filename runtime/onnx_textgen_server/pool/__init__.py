"""The models that a server has, and which of them are open."""
