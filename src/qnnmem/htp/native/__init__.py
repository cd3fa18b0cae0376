"""The program of the child process, and its bindings of the QNN libraries.

Nothing here is imported by the parent, except by name when it starts the child: loading a QNN
library prints to standard output, may abort the process and may take gigabytes.
"""
