"""The export from start to end: options, graph, package, proof and manifest, in this order."""
