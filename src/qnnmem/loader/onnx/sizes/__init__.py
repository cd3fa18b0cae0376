"""Finds sizes with which a model runs, by trying its open dimensions within limits."""
