"""Conversations: a tree of messages, its answers by the model, and the HTML of what is shown."""
