"""Prove that a changed model computes the same results: run both models, compare every output."""

SAMPLES = 3  # random samples if the user gives none
# onnxruntime's optimisation levels other than "disabled"; the last is its default.
LEVELS = ("basic", "extended", "all")
