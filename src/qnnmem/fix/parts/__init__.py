"""A model cut into parts that run one after the other: where to cut, the files, the chain."""
