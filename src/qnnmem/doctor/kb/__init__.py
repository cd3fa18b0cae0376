"""The knowledge base: entries, line templates, checks of both, and stored logs as evidence."""
