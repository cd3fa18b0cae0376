"""The HTP backend: the real library in a child process, context binaries, the memory bill."""
