"""Real programs that use QNN: run with a shared object of ours in them, checked or watched."""
