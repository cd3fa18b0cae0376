"""What is compiled of observer.c; apart, as builders of wheels have none of our dependencies."""

from __future__ import annotations

from qnnmem.native_parts import NativePart

OBSERVER_OBJECT = "libqnnmem_observer.so"
OBSERVER = NativePart("qnnmem.watch", "observer.c", {OBSERVER_OBJECT: ()}, use="watching a program")
