"""Remedies: each changes a model and proves the change."""
