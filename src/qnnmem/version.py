"""The version of qnnmem."""

__version__ = "0.1.0"
