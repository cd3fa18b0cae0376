"""Whether a changed model computes what it did: both are run, every output is compared."""

SAMPLES = 3  # of random data, where none are given
# Optimisation levels of onnxruntime beside "disabled"; it uses the last unless told otherwise.
LEVELS = ("basic", "extended", "all")
