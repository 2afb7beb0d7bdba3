"""Graphs that read a whole text at once, without a cache: the encoder of an encoder-decoder, and text encoders."""
