"""Remedies for HTP, and the real library as judge of them."""
