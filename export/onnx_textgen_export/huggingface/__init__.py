"""Models of transformers, run with a cache; every private name of that library is imported here."""
