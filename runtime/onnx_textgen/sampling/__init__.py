"""From logits to a token: penalties, truncation, constraints, the draw."""
