"""Find sizes a model runs with, by trying its open dimensions within limits."""
