"""Entry point of `python -m qnnmem.cli`."""

from qnnmem.cli import command

command()
