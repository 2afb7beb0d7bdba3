"""What `push` does: a model folder on the hub, with its card."""
