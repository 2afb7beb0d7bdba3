"""An HTTP server that speaks OpenAI's API: completions and chat of one or more model folders, many clients at once."""
