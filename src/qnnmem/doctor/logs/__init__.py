"""Reading logs: where they come from, which of their lines are known, and which belong together."""
