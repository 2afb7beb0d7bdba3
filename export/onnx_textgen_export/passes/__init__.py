"""Small changes to a traced graph, one file each; every pass keeps the logits."""
