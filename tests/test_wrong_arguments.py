"""Each public callable refuses arguments of a wrong type with one sentence, no other error."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import qnnmem
from qnnmem import lpai
from qnnmem.errors import QnnMemError
from qnnmem.qnn.enums import MemType

pytest.importorskip("onnx")

from qnnmem.lpai.binary import pack

ANSWERS = (
    *("Finding", "Infeasible", "MemoryPlan", "PlacedBuffer", "TcmVerdict", "Sourced"),
    *("lpai.Prepared", "lpai.Profile"),
)
METHODS = (
    *("lpai.Backend.create", "lpai.Context.create_from_binary", "lpai.Context.graph_retrieve"),
    *("lpai.ComposedContext.create", "lpai.ComposedContext.create_graph"),
    *(
        "lpai.Heap.free",
        "lpai.Heap.allocate",
        "lpai.Session.run",
        "lpai.Session.feed",
        "lpai.Session.stream",
    ),
    "lpai.Session.restore",
)
WRONG: list[Any] = [
    *(7, -1, 0, True, 1.5, 10**30, float("nan"), "text", "", "two\nlines", b"bytes", None),
    *(Path("nowhere"), [], [1], ["a"], [None], (1, 2, 3), {}, {"a": 1}, {1: "a"}, {"scratch": []}),
    *(set(), object(), ["ab"], [("a", "b", "c")], [["a", 1]]),
]


def relu(path: Path) -> Path:
    """Write a model of one operator and return its path."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.UINT8, [1, 4]) for n in ("x", "y"))
    node = helper.make_node("Max", ["x", "x"], ["y"])
    graph = helper.make_graph([node], "relu", [x], [y])
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


def small_model(**changes: Any) -> qnnmem.Model:
    """Return a model of one operator."""
    tensors = {n: qnnmem.Tensor(n, qnnmem.DType.UINT8, (4,)) for n in "xy"}
    op = qnnmem.Op("op", "Relu", ("x",), ("y",))
    parts = {"tensors": tensors, "ops": (op,), "inputs": ("x",), "outputs": ("y",), **changes}
    return qnnmem.Model("small", "onnx", **parts)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return valid arguments for each public callable."""
    folder = tmp_path_factory.mktemp("sound")
    path = relu(folder / "relu.onnx")
    span, tensor = qnnmem.Span(0, 2), qnnmem.Tensor("x", qnnmem.DType.UINT8, (4,))
    buffer, model = qnnmem.Buffer("a", 8, span), small_model()
    problem = qnnmem.Problem([buffer])
    plan = qnnmem.plan(problem)
    assert isinstance(plan, qnnmem.Plan)
    limit = qnnmem.Sourced(1 << 20, qnnmem.Origin.DOCUMENTED, "a page")
    prepared = lpai.prepare({"g": path})
    binary = b"".join(pack(prepared.context))
    (folder / "g.bin").write_bytes(binary)
    array = numpy.zeros((1, 4), numpy.uint8)
    session = lpai.open(folder / "g.bin", trusted=True)
    backend = lpai.Backend.create()
    context = lpai.Context.create_from_binary(backend, binary)
    composed = lpai.ComposedContext.create(backend)
    heap = lpai.Heap(MemType.DDR)
    return {
        "Buffer": {"name": "a", "size": 8, "live": span, "align": 1},
        "FixedBuffer": {"name": "a", "size": 8, "live": span, "align": 1, "offset": 0},
        "Model": {f: getattr(model, f) for f in model.__dataclass_fields__},
        "Op": {f: getattr(model.ops[0], f) for f in model.ops[0].__slots__},
        "Plan": {f: getattr(plan, f) for f in plan.__dataclass_fields__},
        "PoolOptions": {
            "io": "inside",
            "align": 64,
            "bits": 8,
            "states": (),
            "inplace": True,
            "reorder": True,
        },
        "Problem": {"buffers": [buffer], "capacity": 8},
        "Span": {"lower": 0, "upper": 1},
        "Tensor": {f: getattr(tensor, f) for f in tensor.__slots__},
        "judge_tcm": {
            "model_bytes": 1,
            "io": [1],
            "align": 64,
            "limit": limit,
            "max_buffers": limit,
        },
        "llm": {
            "model": "llama-3.2-1b",
            "soc": "SM8650",
            "context": 1024,
            "ar": (1,),
            "recipe": "genie-w4a16",
            "bits": {"head": 8},
            "shards": (),
        },
        "load": {"path": path, "dims": {}, "shapes": {}, "values": {}},
        "plan": {
            "what": model,
            "time_limit": 1,
            "options": None,
            "budget": {},
            "seed": 0,
            "watch": None,
        },
        "verify": {"plan": plan},
        "lpai.AlignmentReq": {"start_addr_alignment": 64, "size_alignment": 64},
        "lpai.Backend": {"profile": None, "log": None},
        "lpai.Backend.create": {"configs": None, "profile": None, "log": None},
        "lpai.Context.create_from_binary": {
            **{
                "backend": backend,
                "binary": binary,
                "configs": None,
                "sanitize": True,
                "trusted": True,
            }
        },
        "lpai.Context.graph_retrieve": {"self": context, "name": "g"},
        "lpai.ComposedContext": {"backend": backend, "options": lpai.PrepareOptions()},
        "lpai.ComposedContext.create": {"backend": backend, "options": None},
        "lpai.ComposedContext.create_graph": {"self": composed, "name": "g"},
        "lpai.Heap.allocate": {"self": heap, "size": 8, "align": 64, "name": "a"},
        "lpai.Config": {"option": 1, "value": None},
        "lpai.Context": {
            "backend": backend,
            "compiled": prepared.context,
            "config": context.config,
        },
        "lpai.CoreAffinityCfg": {"affinity": 1, "core_selection": 1},
        "lpai.Graph": {
            "context": context,
            "compiled": prepared.context.graphs[0],
            "in_order": True,
        },
        "lpai.Heap": {"mem_type": 1, "capacity": 100, "log": None},
        "lpai.Heap.free": {"self": heap, "memory": heap.allocate(8)},
        "lpai.release": {"memory": bytearray(64)},
        "lpai.HeapBuffer": {"heap": heap, "heap_address": 0, "size": 1, "align": 1, "name": "a"},
        "lpai.HwInfo": {"target": 0, "hw_version": 6},
        "lpai.Mem": {"mem_type": 1, "size": 1, "addr": None},
        "lpai.MemDescriptor": {"dimensions": (1,), "data_type": 1, "mem_type": 1},
        "lpai.MemInfoCustom": {"fd": 0, "offset": 0},
        "lpai.PerfCfg": {"fps": 1, "ftrt_ratio": 1, "client_type": 1},
        "lpai.PrepareOptions": {
            f: getattr(lpai.PrepareOptions(), f) for f in lpai.PrepareOptions.__slots__
        },
        "lpai.Property": {"option": 1, "value": None},
        "lpai.Session": {
            **{"path": folder / "g.bin", "graph": None, "profile": None, "mem_type": "ddr"},
            **{"sanitize": True, "trusted": True, "log": None},
        },
        "lpai.Session.run": {"self": session, "feeds": {"x": array}},
        "lpai.Session.feed": {"self": session, "feeds": {"x": array}},
        "lpai.Session.stream": {"self": session, "frames": [{"x": array}]},
        "lpai.Session.restore": {"self": session, "saved": session.snapshot()},
        "lpai.Signal": {"backend": None},
        "lpai.custom": {"option": 1, "value": None},
        "lpai.custom_property": {"option": 1},
        "lpai.SystemContext": {"version": 1},
        "lpai.get_binary_info": {"binary": binary},
        "lpai.leaks": {},
        "lpai.open": {"path": folder / "g.bin", "graph": None, "mem_type": "ddr"},
        "lpai.prepare": {"files": {"g": path}, "options": None, "say": None, "watch": None},
        "lpai.profile": {
            "mode": "x86",
            "hw_version": "v6",
            "alignment": "default",
            "core_count": 1,
        },
    }


def public_callables() -> Iterator[str]:
    """Yield the names of all public callables."""
    for name in qnnmem.__all__:
        if callable(getattr(qnnmem, name)):
            yield name
    for name in lpai.__all__:
        if callable(getattr(lpai, name)):
            yield f"lpai.{name}"


def made_by_callers() -> list[str]:
    """Return the callables that users call; errors and results are made by the package."""
    return [
        name
        for name in public_callables()
        if name not in ANSWERS and not _is_kind(resolve(name), (Exception, enum.Enum))
    ]


def _is_kind(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, type) and issubclass(value, kinds)


def resolve(name: str) -> Callable[..., Any]:
    """Return the callable with this name."""
    found: Any = qnnmem
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def use(made: Any) -> None:
    """Use a value as a caller would next."""
    str(made)
    match made:
        case Iterator():
            list(made)
        case qnnmem.Model():
            qnnmem.plan(made, 1)
        case qnnmem.PoolOptions():
            qnnmem.plan(small_model(), 1, options=made)
        case qnnmem.Op():
            qnnmem.plan(small_model(ops=(made,)), 1)
        case qnnmem.Tensor():
            qnnmem.plan(small_model(tensors={**small_model().tensors, "x": made}), 1)
        case qnnmem.Buffer():
            qnnmem.plan(qnnmem.Problem([made, qnnmem.Buffer("other", 1, (0, 1))]), 1)
        case qnnmem.FixedBuffer():
            qnnmem.plan(qnnmem.Model("list", "csv", buffers=(made,)), 1)
        case qnnmem.Problem():
            qnnmem.plan(made, 1)
        case qnnmem.Plan():
            qnnmem.verify(made)
            assert made.proof
            assert made.offset_of is not None
        case qnnmem.Span():
            assert made.overlaps(made)
        case lpai.Session():
            made.close()


def accident(call: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """Return how a call fails other than with a short sentence; None if it does not."""
    try:
        use(call(**arguments))
    except QnnMemError as exc:
        text = str(exc)
        return None if text.isprintable() and len(text) < 400 else f"says {text!r:.200}"
    except Exception as exc:
        return "".join(traceback.format_exception(exc)[-2:])[-300:]
    return None


def test_there_is_a_sound_call_of_everything_public(sound: dict[str, dict[str, Any]]) -> None:
    """Every public callable has a valid call here, and these calls succeed."""
    assert sorted(sound) == sorted([*made_by_callers(), *METHODS])
    for name, arguments in sound.items():
        assert accident(resolve(name), arguments) is None, name


@pytest.mark.parametrize("name", [*made_by_callers(), *METHODS])
def test_a_wrong_argument_is_one_sentence(name: str, sound: dict[str, dict[str, Any]]) -> None:
    """Each argument of each wrong type gives a working value or one short sentence."""
    call, arguments = resolve(name), sound[name]
    found = [
        f"{key}={value!r:.30}: {said}"
        for key in arguments
        if key != "self"
        for value in WRONG
        if (said := accident(call, {**arguments, key: value})) is not None
    ]
    assert not found, "\n".join(found)
