"""Entry point of `python -m qnnmem.cli`."""

from qnnmem.cli import main

main()
