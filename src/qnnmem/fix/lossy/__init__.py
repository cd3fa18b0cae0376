"""Remedies that change results and need permission: batch, precision, resolution."""
