"""Run programs under the LPAI contract: a simulated runtime answers each call."""
