"""Prove that a changed model computes the same: run both, compare every output."""

SAMPLES = 3  # of random data, where none are given
# Optimisation levels of onnxruntime beside "disabled"; it uses the last unless told otherwise.
LEVELS = ("basic", "extended", "all")
