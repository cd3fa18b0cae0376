"""Render results as text and JSON; the numbers are computed elsewhere."""
