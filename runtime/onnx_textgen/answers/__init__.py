"""What a chat returns, and how an answer's text is divided into text, thinking and tool calls."""
