"""The memory contract at work: heaps, contexts and graphs in the application's own buffers."""
