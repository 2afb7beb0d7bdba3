"""From requests to texts: which row runs when, and what happens to each token."""
