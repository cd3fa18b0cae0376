"""The memory contract, shared by LPAI, Qmem and real programs: rules, regions, handles, leaks."""
