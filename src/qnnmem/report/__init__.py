"""Render results as text and JSON; other rooms compute the numbers."""
