"""What bodies of all wire formats share: parameters, messages, content."""
