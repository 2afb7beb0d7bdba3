"""The folder that an export writes, whole or not at all."""
