"""How a verb says that the library refused."""

from __future__ import annotations


class Refused(Exception):
    """The library, or ONNX Runtime around it, answered with an error."""

    def __init__(self, stage: str, sentence: str, code: int | None = None) -> None:
        self.stage, self.code = stage, code
        super().__init__(sentence)
