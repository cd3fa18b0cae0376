"""Read logs: find them, match their lines, and group lines that belong together."""
