"""Cut a model into parts that run in sequence: cut positions, part files and the chain."""
