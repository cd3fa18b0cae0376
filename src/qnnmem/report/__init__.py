"""Render results as text and JSON; other packages compute the numbers."""
