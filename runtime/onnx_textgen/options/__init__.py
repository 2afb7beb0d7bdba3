"""The options of a call: their names, their checks and which of them take effect together."""
