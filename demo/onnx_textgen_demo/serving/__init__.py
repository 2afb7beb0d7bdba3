"""The page over HTTP: the server, and what it refuses."""
