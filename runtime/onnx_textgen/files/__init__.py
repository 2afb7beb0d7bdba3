"""Files of strangers, read within limits."""
