"""Programs of ONNX Runtime that leak a session or continue without QNN, one for each word.

A line with `# culprit` makes the session in question.
"""

from __future__ import annotations

import asyncio
import ctypes  # noqa: TID251  # a program that is watched
import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import onnxruntime_qnn
from onnx import TensorProto, helper, save

NAME = "QNNExecutionProvider"
onnxruntime.set_default_logger_severity(4)
onnxruntime.register_execution_provider_library(NAME, onnxruntime_qnn.get_library_path())
WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])


def model(name: str, operator: str = "Relu") -> Any:
    """Return a model of one node with one input and one output."""
    ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [1, 16]) for one in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], name, ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def options(**entries: str) -> Any:
    """Return session options for HTP with these configuration entries."""
    chosen = onnxruntime.SessionOptions()
    for key, value in entries.items():
        chosen.add_session_config_entry(key.replace("__", "."), value)
    devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    chosen.add_provider_for_devices(devices[:1], {"backend_type": "htp", "soc_model": "57"})
    return chosen


def file(name: str, operator: str = "Relu") -> str:
    """Write a model and return its path."""
    path = FOLDER / f"{name}.onnx"
    save(model(name, operator), path)
    return str(path)


def run(session: Any) -> None:
    """Execute a session once."""
    session.run(None, {"x": numpy.ones([1, 16], numpy.float32)})


def other() -> Any:
    """Return a correct session."""
    session = onnxruntime.InferenceSession(file("other"), options())
    run(session)
    return session


class Holder:
    """An object that refers to itself and to a session."""

    def __init__(self, session: Any) -> None:
        self.session, self.me = session, self


def keep(session: Any) -> None:
    """Add a stray reference, like a faulty extension module."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


def global_() -> None:
    """Leave a session in a global, in a process that exits at once."""
    other()
    session = onnxruntime.InferenceSession(file("encoder"), options())  # culprit: global
    run(session)
    os._exit(0)


def exception() -> None:
    """Keep an exception, and through its frame a session."""

    def work() -> None:
        session = onnxruntime.InferenceSession(file("encoder"), options())  # culprit: exception
        session.run(None, {"wrong": 1})

    other()
    try:
        work()
    except ValueError as exc:
        keep(exc)


def cycle() -> None:
    """Leave a session in a reference cycle that is never collected."""
    gc.disable()
    other()
    holder = Holder(onnxruntime.InferenceSession(file("encoder"), options()))  # culprit: cycle
    keep(holder)


def coroutine() -> None:
    """Leave a session in a task that never ends, in a separate thread."""
    ready = threading.Event()

    async def work() -> None:
        session = onnxruntime.InferenceSession(file("encoder"), options())  # culprit: coroutine
        run(session)
        ready.set()
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(work(),), daemon=True).start()
    ready.wait()
    other()


def function() -> None:
    """Make two sessions in one function and keep the second."""

    def load(name: str) -> Any:
        return onnxruntime.InferenceSession(file(name), options())

    load("decoder")
    keep(load("encoder"))  # culprit: function


def twice() -> None:
    """Make two sessions of one model and keep the second."""
    path = file("encoder")
    first = onnxruntime.InferenceSession(path, options())
    second = onnxruntime.InferenceSession(path, options())  # culprit: twice
    run(first)
    keep(second)


def lost() -> None:
    """Make a session without a context, which computes on the CPU."""
    kept = other()
    data = model("encoder").SerializeToString()
    session = onnxruntime.InferenceSession(data, options())  # culprit: lost
    run(session)
    run(kept)


def unsupported() -> None:
    """Make a session of which QNN takes no node, although no call fails."""
    other()
    path = file("encoder", "Hardmax")
    session = onnxruntime.InferenceSession(path, options())  # culprit: unsupported
    run(session)


def executed() -> None:
    """Execute a session until a call fails and ONNX Runtime silently continues without QNN."""
    kept = other()
    session = onnxruntime.InferenceSession(file("encoder"), options())  # culprit: executed
    for _ in range(4):
        run(session)
    run(kept)


def damaged() -> None:
    """Truncate the context binary of a model and fall back to the CPU."""
    made = FOLDER / "made.onnx"
    context = options(
        ep__context_enable="1", ep__context_file_path=str(made), ep__context_embed_mode="0"
    )
    onnxruntime.InferenceSession(file("encoder"), context)
    [binary] = FOLDER.glob("made*.bin")
    binary.write_bytes(binary.read_bytes()[:5000])
    try:
        session = onnxruntime.InferenceSession(str(made), options())  # culprit: damaged
    except Exception:
        session = onnxruntime.InferenceSession(file("encoder"), providers=["CPUExecutionProvider"])
    run(session)


def finalized() -> None:
    """Fail to finalize a graph and fall back to the CPU."""
    other()
    try:
        session = onnxruntime.InferenceSession(file("encoder"), options())  # culprit: finalized
    except Exception:
        session = onnxruntime.InferenceSession(file("encoder"), providers=["CPUExecutionProvider"])
    run(session)


def restored() -> None:
    """Make a session from a context binary and keep the session."""
    made = str(FOLDER / "made.onnx")
    context = options(ep__context_enable="1", ep__context_file_path=made)
    onnxruntime.InferenceSession(file("encoder"), context)
    session = onnxruntime.InferenceSession(made, options())  # culprit: restored
    run(session)
    keep(session)


globals()[WHAT]()  # last line
