"""Other runtimes that open a model folder and continue token ids greedily, one file each, over one protocol."""
