"""The decoder as the exporter sees it, and its cache."""
