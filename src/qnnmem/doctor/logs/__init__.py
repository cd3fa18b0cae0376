"""Reading of logs: finds logs, matches their lines, and groups related lines."""
