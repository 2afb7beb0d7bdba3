"""Other graphs over the weights of a package's graph: with adapters, or for the verification of drafts."""
