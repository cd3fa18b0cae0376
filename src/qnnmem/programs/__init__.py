"""Real programs that use QNN, run with a preloaded shared object that reports their QNN calls."""
