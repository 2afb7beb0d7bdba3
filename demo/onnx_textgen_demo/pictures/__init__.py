"""What the page draws: the stages of a step, attention, embeddings, plots."""
