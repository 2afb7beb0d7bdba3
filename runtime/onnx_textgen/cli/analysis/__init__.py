"""Commands that look inside: a prompt step by step, the score of a text."""
