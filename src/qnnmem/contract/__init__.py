"""The memory contract, once for LPAI, Qmem and real programs: rules, regions, handles, leaks."""
