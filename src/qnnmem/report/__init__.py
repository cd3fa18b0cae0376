"""Renderers of results as text and JSON; nothing is computed here."""
