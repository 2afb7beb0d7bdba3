"""Pictures in prompts: from files to pixels, from pixels to the rows that take the place of token embeddings."""
