"""A model cut into parts that run in sequence: where to cut, the files, the chain."""
