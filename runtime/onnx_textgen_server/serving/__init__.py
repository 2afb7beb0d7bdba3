"""What all wire formats share: the texts of a request, the answers of a chat, their delivery, and problems."""
