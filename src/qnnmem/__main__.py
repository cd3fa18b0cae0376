"""Entry point of `python -m qnnmem`."""

from qnnmem.cli import command

command()
