"""Records of a chat's answers, and their division into text, thinking and tool calls."""
