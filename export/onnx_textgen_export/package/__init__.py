"""The folder that an export writes, completely or not at all."""
