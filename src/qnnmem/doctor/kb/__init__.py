"""The knowledge base: entries, line templates, the check of both, and the logs kept as evidence."""
