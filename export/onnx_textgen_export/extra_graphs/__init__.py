"""Further graphs over a package's weights: attention maps, a cache at 8 bits, what other runtimes open."""
