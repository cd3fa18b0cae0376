"""The program of the child process, and its bindings of the QNN libraries.

The parent imports nothing from here. It only starts the child by module name: loading a QNN library
prints to standard output, can abort the process and can take gigabytes.
"""
