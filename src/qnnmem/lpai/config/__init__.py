"""The config files of LPAI: schema, reading, checking, writing."""
