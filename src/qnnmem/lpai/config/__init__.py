"""The configuration files of LPAI: schema, reading, checking, writing."""
