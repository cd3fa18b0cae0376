"""Load ONNX files into the IR by a chain of passes; each takes the result of the previous pass.

    read      path            ->  ReadModel       bytes that unpack into bounded memory
    guard     ReadModel       ->  GuardedModel    a ModelProto, checked
    open      GuardedModel    ->  OpenModel       functions inlined
    resolve   OpenModel       ->  ResolvedModel   inputs fixed
    fold      ResolvedModel   ->  FoldedModel     constant Ifs replaced by the branch taken
    shape     FoldedModel     ->  ShapedModel     a type for every tensor
    build     ShapedModel     ->  ir.Model

If an input has the wrong size, look at resolve. If a branch is missing or wrong, look at fold; if
another shape is wrong, at shape; if a view, a constant or a quantized tensor is wrong, at build. A
LoadError carries the name of its pass as `stage`; for open this is `resolve`.

Each pass calls these modules, in order:

    read      bounded_file, protobuf_wire
    guard     tensor, well_formed
    open      trial (inlines functions), well_formed
    resolve   inputs
    fold      trial (infers types), scope, trial (computes conditions)
    shape     trial, refusal; fold for each body, and again when new types are known
    build     scope

`sizes` calls the passes: it tries the sizes of a caller and suggests sizes that fit. No pass runs a
model: `trial` does, in a child process. No pass changes its input; protobuf messages are shared,
and replaced instead of changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from qnnmem.errors import QnnMemError
from qnnmem.loader.onnx.inputs import Fixed, InputValue
from qnnmem.text import quote

if TYPE_CHECKING:
    import onnx

    from qnnmem.ir import Model
    from qnnmem.loader.onnx.passes.guard import GuardedModel
    from qnnmem.loader.onnx.passes.shape import ShapedModel

_LOCATION = "location"  # key of external data that names its file


class FixedSizes(TypedDict, total=False):
    """Sizes for the open dimensions of a model, and values for its inputs.

    `dims` sets named dimensions. `shapes` sets whole inputs, and upper limits for inner tensors
    whose shape depends on data. `values` makes inputs constants: a number, several numbers, an
    array, or the path of a .npy or .raw file.
    """

    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, InputValue]


class ReadOptions(FixedSizes, total=False):
    """Fixed sizes, and the time limit for trial runs."""

    time_limit_s: float


def read(path: Path, **options: Unpack[ReadOptions]) -> Model:
    """Return the model in an ONNX file with every shape fixed."""
    from qnnmem.loader.onnx.passes.build import build

    return build(read_shaped(path, **options))


def executable(path: Path, **options: Unpack[ReadOptions]) -> onnx.ModelProto:
    """Return the ONNX graph from which `read` builds the model.

    `Op.sources` of the model has the indexes of this graph's nodes. The options must be those of
    `read`. The graph has a value info with the type of every tensor. External data is not moved:
    locations were checked and are relative to the model's folder.
    """
    from qnnmem.loader.onnx.passes.shape import write_typed

    return write_typed(read_shaped(path, **options))


def read_with_graph(path: Path, **options: Unpack[ReadOptions]) -> tuple[Model, onnx.ModelProto]:
    """Return the results of `read` and `executable` from one pass over the file."""
    from qnnmem.loader.onnx.passes.build import build
    from qnnmem.loader.onnx.passes.shape import write_typed

    shaped = read_shaped(path, **options)
    return build(shaped), write_typed(shaped)


def read_shaped(
    path: Path, *, time_limit_s: float = 60.0, **options: Unpack[FixedSizes]
) -> ShapedModel:
    """Return the model after all passes but `build`."""
    from qnnmem.loader.onnx.passes.guard import guard
    from qnnmem.loader.onnx.passes.read import read
    from qnnmem.loader.onnx.passes.resolve import open_model
    from qnnmem.loader.onnx.sizes.advice import shape_or_advise
    from qnnmem.loader.onnx.trial import TrialChild

    path = Path(path)
    content = read(path)  # most damaged files fail here, before a process is started
    with TrialChild(path, time_limit_s) as child:  # the child imports its libraries meanwhile
        guarded = guard(content)
        del content  # up to 2 GiB that no later pass needs
        opened = open_model(guarded, child)
        return shape_or_advise(opened, Fixed(**options), child)


def read_guarded(path: Path) -> GuardedModel:
    """Return the checked model without inferred shapes."""
    from qnnmem.loader.onnx.passes.guard import guard
    from qnnmem.loader.onnx.passes.read import read

    return guard(read(path))


def tensor_count(path: Path) -> int | None:
    """Return the number of tensors in an ONNX model, weights included; None for other files."""
    from qnnmem.loader.file_kind import kind_of_file
    from qnnmem.loader.onnx.tensor import count_tensors

    is_onnx = kind_of_file(path).name == "onnx"
    return count_tensors(read_guarded(path).proto.graph) if is_onnx else None


def weight_files(path: Path, folder: Path) -> dict[str, Path]:
    """Return the external data files of a model, by their names in the model.

    Each file must be below `folder` after links are resolved; it need not exist.
    """
    from qnnmem.bounded_file import file_below
    from qnnmem.errors import Damaged, LoadError
    from qnnmem.loader.onnx.passes.guard import decode
    from qnnmem.loader.onnx.passes.read import read
    from qnnmem.loader.onnx.tensor import EXTERNAL, tensors

    model = read(path)
    if _LOCATION.encode() not in model.blob:
        return {}  # decoding a large model takes seconds
    files: dict[str, Path] = {}
    for tensor in tensors(decode(model)):
        for entry in tensor.external_data if tensor.data_location == EXTERNAL else ():
            if entry.key == _LOCATION and entry.value not in files:
                try:
                    files[entry.value] = file_below(folder, str(entry.value))
                except Damaged as exc:
                    raise LoadError(path, f"a weight file {exc}") from None
    return files


# Metadata property that names the backend for which `qnnmem fix` changed a model.
_FIXED_FOR = "qnnmem.fixed_for"
_BACKENDS = {"lpai": "LPAI", "htp": "HTP"}


def mark_backend(model: onnx.ModelProto, backend: str) -> None:
    """Store the backend as a metadata property of a model."""
    for item in model.metadata_props:
        if item.key == _FIXED_FOR:
            item.value = backend
            return
    model.metadata_props.add(key=_FIXED_FOR, value=backend)


def other_backend_note(path: Path, backend: str) -> str:
    """Return a warning if `fix` changed a model for another backend; empty if not."""
    if path.suffix.lower() != ".onnx":
        return ""
    try:
        properties = read_guarded(path).proto.metadata_props
    except QnnMemError:
        return ""  # the verb reports the error itself
    fixed_for = next((item.value for item in properties if item.key == _FIXED_FOR), "")
    if fixed_for not in _BACKENDS or fixed_for == backend:
        return ""
    return (
        f"{quote(path.name)} was made by qnnmem fix for {_BACKENDS[fixed_for]}; it may need more "
        f"memory on {_BACKENDS[backend]}: compare it with the original model"
    )
