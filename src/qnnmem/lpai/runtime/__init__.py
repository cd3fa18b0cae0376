"""Simulated LPAI runtime: heaps, contexts, and graphs that run in the application's buffers."""
