"""From requests to texts: which row runs when, and what becomes of each token."""
