"""How a model writes its thinking and its tool calls, found out from its chat template."""
