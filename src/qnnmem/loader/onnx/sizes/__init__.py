"""Which sizes a model runs with: what it leaves open, tried within limits."""
