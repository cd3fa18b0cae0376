"""Named tuples that cost little to define.

`typing.NamedTuple` compiles every annotation when a class is made and brings the `typing` module,
which together takes longer than reading a small log. Type checkers see the real one.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:

    class _Kind(type):
        def __new__(mcs, name, bases, body):
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = list(body.get("__annotations__", ()))
            defaults = [body.pop(field) for field in fields if field in body]
            base = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            body["__slots__"] = ()
            return type(name, (base,), body)

    class Record(metaclass=_Kind):
        """Base of a named tuple."""


__all__ = ["Record"]
