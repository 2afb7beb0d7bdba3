"""A conversation of the tab Chat as data: its tree of messages, its open calls, and what a browser kept."""
