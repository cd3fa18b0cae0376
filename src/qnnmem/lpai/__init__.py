"""The LPAI memory contract as a runtime: planned addresses, really executed."""
