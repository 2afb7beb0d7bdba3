"""How a model writes its thinking and its tool calls: read from its own data, parsed from its text, and required by a grammar."""
