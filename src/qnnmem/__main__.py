"""`python -m qnnmem`."""

from qnnmem.cli import main

main()
