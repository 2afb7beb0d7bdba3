"""What a program holds: a model, a conversation, and how they are opened."""
