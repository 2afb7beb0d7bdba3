"""Further graphs over a package's weights, each with its proof."""
