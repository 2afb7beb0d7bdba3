"""Parts of the bodies of all wire formats: parameters, messages, content."""
