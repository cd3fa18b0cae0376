"""Finds sizes with which a model runs, by trying its free dimensions within limits."""
