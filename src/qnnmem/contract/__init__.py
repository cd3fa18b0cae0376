"""The memory contract for LPAI, Qmem and real programs: rules, regions, handles, leaks."""
