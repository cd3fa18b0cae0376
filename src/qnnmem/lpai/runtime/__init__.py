"""Simulated LPAI runtime: heaps, contexts and graphs in buffers of the application."""
