"""What can be said about a model for HTP without compiling it, for machines without a compiler.

Everything that a compile would refuse before it begins is refused here too, so that nobody moves to
another machine to learn of a typing error.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from qnnmem.errors import FreeDimensions, LoadError
from qnnmem.htp.compile import CompileOptions, HtpPrecision, check_options
from qnnmem.htp.compile.model import check_composed, is_composed, model_source
from qnnmem.ir import Model
from qnnmem.provenance import Origin, Sourced
from qnnmem.targets.socs import PD_BUDGET, Soc, limits_of, pd_budget

Facts = tuple[tuple[str, Sourced], ...]

_BITS = {HtpPrecision.FP16: 16, HtpPrecision.INT8: 8, HtpPrecision.W8A16: 8}  # of weights
_SOCS = 3  # limits of more are a table of their own


def known_uncompiled(path: Path, socs: Sequence[Soc], options: CompileOptions) -> Facts:
    """The sizes of a model and the limits of SoCs, each with its origin."""
    for soc in socs:
        check_options(soc, options)
    if is_composed(path):
        check_composed(path, options)
    few = socs if len(socs) <= _SOCS else ()
    limits = dict(limit for soc in few for limit in limits_of(soc))
    limits = limits or {PD_BUDGET: pd_budget()}  # which is the same for all
    return (*_sizes(path, options), *limits.items())


def _sizes(path: Path, options: CompileOptions) -> Facts:
    """Weights, inputs and outputs; nothing of a model that the compiler alone reads."""
    from qnnmem.loader import kind_of, load

    if options.trust:  # a library composes its graphs only into another
        return ()
    try:
        model = load(path, dims=options.dims, shapes=options.shapes, values=options.values)
    except FreeDimensions:
        raise
    except LoadError:
        if kind_of(path) != "onnx":
            raise
        _check_readable(path, options)
        return ()
    if options.calibration is not None:
        _check_samples(options.calibration, model)
    return (*_weights(model, options.precision), *_io(model))


def _check_readable(path: Path, options: CompileOptions) -> None:
    """What a compile does before the library is asked."""
    with tempfile.TemporaryDirectory(".qnnmem") as folder:
        scratch = Path(folder)
        source = model_source(path, options, scratch)
        if options.precision is not HtpPrecision.FP16:
            source.fixed()


def _check_samples(place: Path, model: Model) -> None:
    from qnnmem.calibration import Input, find_samples

    tensors = (model.tensors[name] for name in model.inputs)
    find_samples(place, [Input(t.name, t.dtype.value, t.shape) for t in tensors])


def _weights(model: Model, precision: HtpPrecision) -> Facts:
    constants = [model.tensors[name] for name in model.constants]
    stored = sum(tensor.nbytes for tensor in constants)
    floats = [tensor for tensor in constants if tensor.dtype.is_float]
    real = sum(tensor.nbytes for tensor in floats)
    bits = _BITS[precision]
    made = stored - real + sum(tensor.nbytes_at(min(bits, tensor.dtype.bits)) for tensor in floats)
    source = "constants as the file stores them"
    found = [("weights in the file", Sourced(stored, Origin.COMPUTED, source))]
    if made != stored and 2 * real > stored:  # the floats of a quantized model are scales
        source = f"{bits // 8} bytes for each float" if bits > 8 else "a byte for each float"
        source += ", before the compiler packs them"
        found.append((f"weights as {precision.value}", Sourced(made, Origin.COMPUTED, source)))
    return tuple(found)


def _io(model: Model) -> Facts:
    source = "elements times element size, without pads"
    ends = (("inputs", model.inputs), ("outputs", model.outputs))
    sizes = ((name, sum(model.tensors[one].nbytes for one in names)) for name, names in ends)
    return tuple((name, Sourced(size, Origin.COMPUTED, source)) for name, size in sizes)
