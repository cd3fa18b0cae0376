"""Remedies that change results, which must be allowed: batch, precision, resolution."""
