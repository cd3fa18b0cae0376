"""Whether a changed model computes what it did: both are run, every output is compared."""

SAMPLES = 3  # of made-up data, where none are given
