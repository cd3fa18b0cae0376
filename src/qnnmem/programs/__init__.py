"""Real programs that use QNN, run with a preloaded shared object, checked or watched."""
