"""Real programs under the contract: the C shim, its wire, the client's memory, stacks, findings."""
