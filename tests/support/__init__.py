"""What tests of several parts share: models, graphs and servers to test with, and the scripts that make what is committed."""
