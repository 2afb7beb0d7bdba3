"""Serving for all wire formats: the texts of a request, the answers of a chat, their delivery, and problems."""
