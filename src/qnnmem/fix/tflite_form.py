"""Translate a TFLite model to the quantized ONNX model that remedies can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qnnmem.errors import UsageError
from qnnmem.fix.graph.fusion import LEVELS, Reworker, keep_order
from qnnmem.fix.proof.prove import prove
from qnnmem.fix.remedy import read_again
from qnnmem.loader.onnx.passes.shape import ShapedModel
from qnnmem.text import counted


@dataclass(frozen=True, slots=True)
class TfliteForm:
    """ONNX form of a TFLite model, the states (input-output pairs), and a note on the accuracy."""

    model: ShapedModel
    states: tuple[tuple[str, str], ...]
    note: str


def tflite_form(
    path: Path, *, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> TfliteForm:
    """Translate a TFLite model to ONNX; raise UsageError if an operator has no ONNX form.

    The translation is compared with exact integer arithmetic on random data; `note` states the
    largest difference.
    """
    from qnnmem.loader.tflite import read_with_graph

    described, form, states = read_with_graph(path, shapes=shapes, dims=dims, reals=True)
    _, exact, _ = read_with_graph(path, shapes=shapes, dims=dims)
    if form is None or exact is None:
        raise UsageError(described.notes[-1], where=path)
    with Reworker() as child:  # cancels out transposes between layers
        optimised = child.optimised(form, LEVELS["exact"])
    keep_order(form, optimised)
    proof = prove(exact, optimised, lossy=True)
    result = "gives results bitwise identical to TFLite"
    if not proof.identical:
        result = (
            f"differs from TFLite by at most {proof.largest:.3g} in an output, "
            f"{proof.relative:.2g} of its largest value"
        )
    note = f"the ONNX form of this TFLite model {result}, on {counted(proof.samples, 'sample')}"
    model = read_again(optimised)
    resolved = replace(model.resolved, path=path)
    return TfliteForm(replace(model, resolved=resolved), states, note)
