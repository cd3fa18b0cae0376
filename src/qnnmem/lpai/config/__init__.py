"""The configuration files of LPAI: what they may hold, reading, checking and writing them."""
