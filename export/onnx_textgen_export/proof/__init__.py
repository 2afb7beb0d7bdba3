"""What is compared with PyTorch, and within which limits."""
