"""Programs under the LPAI contract: each call is answered by the simulated runtime."""
