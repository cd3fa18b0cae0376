"""Read, check and write the config files of LPAI."""
