"""Whether a changed model computes what it did: both are run, every output is compared."""
