"""Reading of logs: find them, match their lines, and group related lines."""
