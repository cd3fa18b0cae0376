"""Results to text and JSON; computes nothing."""
