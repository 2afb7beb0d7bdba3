"""Text encoders (BERT and its kind): models that read a whole text at once and make a vector of it, or a score of a pair."""
