"""Real programs that use QNN, run with a preloaded shared object and checked or watched."""
