"""Cases about calls: order, options, binaries, IO, queue, shared memory and leaks.

Rules R3 to R5, R9 to R20, B1, P1, M1 to M4 and L1 to L4.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

from qnnmem.contract.leaks import leaks
from qnnmem.contract.regions import release
from qnnmem.ir import Model
from qnnmem.lpai.profiles import Profile, profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.descriptors import (
    Config,
    CoreAffinityCfg,
    HwInfo,
    MemDescriptor,
    MemInfoCustom,
    PerfCfg,
    Property,
    custom,
    custom_property,
)
from qnnmem.lpai.runtime.graph import EARLY_TERMINATION
from qnnmem.lpai.runtime.queue import Signal
from qnnmem.lpai.runtime.system_context import get_binary_info
from qnnmem.lpai.selftest.client import (
    FINDING,
    KEEP,
    WAIT_S,
    Client,
    Steps,
    Trial,
    TrialClient,
    breaks,
    is_all,
    keeps,
    numbers,
    retrieved,
)
from qnnmem.lpai.selftest.models import ELEMENTS, binary, context
from qnnmem.qnn.enums import (
    BackendProperty,
    BinaryCompatibility,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    DataType,
    GraphConfigOption,
    GraphOption,
    HwVersion,
    MemRegisterType,
    Target,
    TensorMemType,
)
from qnnmem.qnn.tensor import QnnTensor

_NAMES = ("counter", "double", "plain", "outside", "bare", "window", "layout")
_ADSP, _ARM, _V7, _SLOW = (
    profile("adsp"),
    profile("arm"),
    profile(hw_version="v7"),
    profile(inference_us=10_000),
)
_ISLAND, _PERF = ContextCustomOption.ENABLE_ISLAND, GraphOption.SET_CFG_PERF_CFG
_STRICT = Config(ContextOption.BINARY_COMPATIBILITY, BinaryCompatibility.STRICT)
_VERSION_AT = 8  # position of the container's format version, after the magic
_FINALIZED = (lambda c: c.graph.is_finalized, "the graph is not finalized")

_ROOM = 4096
_CUSTOM, _ION, _DMA_BUF = MemRegisterType.CUSTOM, MemRegisterType.ION, MemRegisterType.DMA_BUF


def _create(content: Any) -> Context:
    return Context.create_from_binary(Backend.create(), content, [KEEP], trusted=True)


def _enable(*names: str) -> Config:
    return Config(ContextOption.ENABLE_GRAPHS, [*names, None])


def _execution_refused(t: Trial, client: Client) -> None:
    codes: list[int] = []
    t.refused(client.graph.execute)
    t.refused(client.graph.execute_async, notify=codes.append)
    t.check(codes == [], "a refused executeAsync called its callback")


def _not_finalized(t: Trial) -> None:
    client = t.client("plain").give_scratch()
    _execution_refused(t, client)
    client.finalize().gives(3)


def _executed_after_free(t: Trial) -> None:
    client = t.client().ready().freed("context")
    _execution_refused(t, client)
    client.refused(Client.set)


def _binary_released(t: Trial) -> None:
    content = bytearray(binary())
    graph = _create(content).graph_retrieve("bare")
    graph.finalize()
    release(content)
    t.refused(graph.execute)


def _names_read(t: Trial) -> None:
    names = tuple(info.graph_name for info in get_binary_info(binary()))
    t.check(names == _NAMES, "the binary has unexpected graph names")


def _properties(t: Trial) -> None:
    client = t.client()
    queried, sizes = ([custom_property(n) for n in group] for group in ((0, 1), (1, 101)))
    client.backend.get_property([*queried, None])
    client.graph.get_property([*sizes, None])
    persistent = queried[1].value.value
    t.check(persistent is False, "x86 mode reports that it requires a persistent binary")
    reported = [size.value.value for size in sizes]
    t.check(reported == [256, 128], "the reported sizes differ from the plan")


def _hardware(t: Trial) -> None:
    platform = Backend.create([custom(0, HwInfo(Target.ADSP, HwVersion.V7)), None]).profile
    t.check(platform.hw_version is HwVersion.V7, "the hardware info had no effect")
    t.check(platform.require_persistent_binary, "the target had no effect")


def _unknown_options(t: Trial) -> None:
    client, good = t.client(), custom_property(0)
    t.refused(client.backend.get_property, [good, custom_property(77), None], code=4004)
    t.check(good.value.value is None, "a refused call filled in a property")
    t.refused(Client, configs=[Config(99)], code=5000)
    t.refused(client.set, custom(77), code=6000)
    t.refused(client.graph.get_property, [Property(5), None], code=6000)


def _unsupported_options(t: Trial) -> None:
    client, cores = t.client(), custom_property(BackendProperty.GET_PROP_ENPU_CORE_NUM)
    t.refused(client.backend.get_property, [cores, None], code=4003)
    t.refused(Client, configs=[Config(ContextOption.OEM_STRING, "x")], code=1000)
    t.refused(client.set, Config(GraphConfigOption.PROFILE_HANDLE, 1), code=1000)
    t.refused(client.backend.device_create, code=1000)


def _cores(t: Trial) -> None:
    client = t.client(profile=profile(core_count=3))
    for mask in (0b011, 0b1000):
        affinity = CoreAffinityCfg(core_selection=mask)
        t.refused(client.set, custom(GraphOption.SET_CFG_CORE_AFFINITY, affinity))
    t.check(client.graph.affinity == CoreAffinityCfg(), "a refused affinity took effect")


def _islands(t: Trial) -> None:
    t.client(profile=_ARM, configs=[custom(_ISLAND)])
    client = t.client(profile=_ARM, configs=[custom(_ISLAND, n) for n in ("counter", "plain")])
    t.check(
        len(client.context.config.island) == 2, "island mode is not set for each of the two graphs"
    )


def _wrong_hardware(t: Trial) -> None:
    t.refused(_create, binary("v7"), code=5008)
    other = bytearray(binary())
    other[_VERSION_AT] += 1
    t.refused(_create, other, code=5004)


def _no_nodes(t: Trial) -> None:
    empty = replace(context().graphs[0], name="empty", model=Model("empty", "onnx"), buffers=())
    t.refused(retrieved(empty).finalize)


def _damaged(t: Trial) -> None:
    flipped = bytearray(binary())
    flipped[len(flipped) // 2] ^= 1
    for bad in (binary()[:-1], flipped, b"", b"\x08\x07\x12\x04onnx"):
        t.refused(_create, bad, code=5005)
        t.refused(get_binary_info, bad, code=30010)


def _misaligned(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    inputs[0].client_buf = client.buffer(256).view[4:104]
    t.refused(client.graph.execute, inputs, outputs)
    client.gives(6, given=2)


def _sizes(t: Trial) -> None:
    client = t.client("plain").ready()
    for size in (100, 101, 128):
        inputs, outputs = client.tensors()
        inputs[0].data_size = outputs[0].data_size = size
        code = client.graph.execute(inputs, outputs)
        t.check(code == 0, f"execute fails with a data size of {size}")


def _wrong_sizes(t: Trial) -> None:
    client = t.client("plain").ready()
    for size in (0, 99, 129, -1):
        inputs, outputs = client.tensors()
        outputs[0].data_size = size
        t.refused(client.graph.execute, inputs, outputs)


def _in_scratch(t: Trial) -> None:
    graph = t.client("plain").ready().graph
    graph.view("x").array[:] = 5
    graph.execute()
    t.check(is_all(graph.view("y").array, 15), "wrong result")
    t.check(graph.counters.copied_bytes == 0, "bytes were copied")


def _early(t: Trial) -> None:
    client = t.client("window").ready()
    inputs, outputs = client.tensors()
    numbers(inputs[0])[:] = 4
    numbers(outputs[0])[:] = -1
    first = client.graph.execute(inputs, outputs)
    t.check(first == EARLY_TERMINATION, f"{first} instead of 6038")
    t.check(is_all(numbers(outputs[0]), -1), "the output was changed before the window was full")
    t.check(client.graph.execute(inputs, outputs) == 0, "a full window gave no result")
    t.check(is_all(numbers(outputs[0]), 8), "wrong result")


def _freed_output(t: Trial) -> None:
    client = t.client("plain").ready()
    inputs, outputs = client.tensors()
    outputs[0].client_buf.free()
    t.refused(client.graph.execute, inputs, outputs)
    codes: list[int] = []
    client.graph.execute_async(inputs, outputs, codes.append)
    client.finish()
    t.check(codes == [6004], f"the notification reported {codes} instead of [6004]")


def _queued(t: Trial, *, blocks: bool) -> TrialClient:
    depth = Config(ContextOption.ASYNC_EXECUTION_QUEUE_DEPTH, 1)
    platform = profile(async_blocks=blocks)
    return t.client("plain", profile=platform, configs=[KEEP, depth]).ready()


def _waits(t: Trial) -> None:
    client, done = _queued(t, blocks=True), Event()

    def third() -> None:
        client.graph.execute_async()
        done.set()

    with client.held():
        client.graph.execute_async()
        Thread(target=third, daemon=True).start()
        t.check(not done.wait(0.02), "the call did not wait for space in the queue")
    t.check(done.wait(WAIT_S), "the call never returned")
    client.finish()
    t.check(client.graph.counters.executions == 3, "an execution was lost")


def _in_order(t: Trial) -> None:
    client, order = t.client("plain").ready(), list[int]()
    for number in range(8):
        client.graph.execute_async(notify=lambda code, n=number: order.append(code or n))  # type: ignore[misc]  # a default binds the number
    client.graph.execute()
    t.check(order == list(range(8)), f"the executions ended in the order {order}")


def _full(t: Trial) -> None:
    client, codes = _queued(t, blocks=False), list[int]()
    with client.held():
        client.graph.execute_async(notify=codes.append)
        t.refused(client.graph.execute_async, notify=codes.append)
    t.check(codes == [0], f"notifications reported {codes} instead of [0]")


def _signal_again(t: Trial) -> None:
    client, signal = t.client("plain").ready(), Signal()
    client.graph.execute(signal=signal)
    client.graph.execute(signal=signal)
    t.check(not signal.in_use, "the signal is still in use")


def _signal_twice(t: Trial) -> None:
    client, signal, codes = t.client("plain").ready(), Signal(), list[int]()
    with client.held():
        client.graph.execute_async(notify=codes.append, signal=signal)
        t.refused(client.graph.execute, signal=signal)
        t.refused(client.graph.execute_async, notify=codes.append, signal=signal)
    t.check(codes == [0] and not signal.in_use, "the first call was affected")


@contextmanager
def _shared() -> Iterator[int]:
    """Yield the descriptor of a file that is large enough for some tensors."""
    with tempfile.TemporaryFile() as file:
        file.truncate(_ROOM)
        yield file.fileno()


def _range(
    fd: int, offset: int, elements: int = ELEMENTS, kind: MemRegisterType = _CUSTOM
) -> MemDescriptor:
    return MemDescriptor((1, elements), DataType.INT_32, kind, MemInfoCustom(fd, offset))


def _registers(
    offset: int,
    elements: int = ELEMENTS,
    kind: MemRegisterType = _CUSTOM,
    platform: Profile | None = None,
) -> Steps:
    """Return steps that register a range of a shared buffer."""

    def steps(t: Trial) -> None:
        with _shared() as fd:
            context = t.client(profile=platform).context
            t.check(bool(context.mem_register([_range(fd, offset, elements, kind)])), "no handle")

    return steps


def _registers_not(offset: int, *kinds: MemRegisterType) -> Steps:
    """Return steps in which registering a range of a shared buffer fails."""

    def steps(t: Trial) -> None:
        with _shared() as fd:
            for kind in kinds:
                t.refused(t.client().context.mem_register, [_range(fd, offset, kind=kind)])

    return steps


def _use(tensor: QnnTensor, handle: object) -> None:
    tensor.mem_type, tensor.mem_handle, tensor.client_buf = TensorMemType.MEMHANDLE, handle, None


def _two_ranges(t: Trial) -> None:
    client = t.client("plain").ready()
    with _shared() as fd:
        handles = client.context.mem_register([_range(fd, 0), _range(fd, 128)])
        inputs, outputs = client.tensors()
        for tensor, handle in zip((inputs[0], outputs[0]), handles, strict=True):
            _use(tensor, handle)
        handles[0].array.view("int32")[:] = 4
        client.graph.execute(inputs, outputs)
        t.check(is_all(handles[1].array.view("int32"), 12), "wrong result")
        t.check(client.graph.counters.copied_bytes == 0, "bytes were copied")
        client.context.mem_deregister(handles)


def _registered_twice(t: Trial) -> None:
    context = t.client("plain").ready().context
    with _shared() as fd:
        context.mem_register([_range(fd, 0)])
        t.refused(context.mem_register, [_range(fd, 128), _range(fd, 0)])
        context.mem_register([_range(fd, 128)])


def _outside_the_fd(t: Trial) -> None:
    client = t.client("plain").ready()
    context, (inputs, outputs) = client.context, client.tensors()
    with _shared() as fd:
        t.refused(context.mem_register, [_range(fd, _ROOM - 64)], code=8003)
        handles = context.mem_register([_range(fd, 0)])
    t.refused(context.mem_register, [_range(-1, 0)], code=8003)
    context.mem_deregister(handles)
    t.refused(context.mem_deregister, handles, code=8001)
    _use(inputs[0], handles[0])
    t.refused(client.graph.execute, inputs, outputs, code=6004)


def _left(t: Trial, *wanted: str) -> None:
    """Check that the leaks break the expected rules, and that each report has a line number."""
    current = leaks()
    rules = [leak.rule for leak in current]
    t.check(rules == list(wanted), f"rules in leak reports: {rules} instead of {list(wanted)}")
    t.check(all(" at " in leak.sentence for leak in current), "a leak report has no line number")


def _freed_in_order(t: Trial) -> None:
    t.client().ready().executed().freed("context", "backend").no_findings()
    _left(t)


def _never(t: Trial) -> None:
    client = t.client().ready()
    _left(t, "L1", "L2", "L2")  # the backend, its context, and that context's graph
    client.context.free()
    _left(t, "L1")
    client.backend.free()
    _left(t)


def _registered_memory(t: Trial, *, deregister: bool) -> None:
    client = t.client("plain")
    with _shared() as fd:
        handles = client.context.mem_register([_range(fd, 0)])
        if deregister:
            client.context.mem_deregister(handles)
            client.freed("context").no_findings()
        else:
            client.noted(lambda c: c.context.free())


def _signals(t: Trial) -> None:
    client = t.client("plain").ready()
    for signal in (Signal(), Signal(client.backend)):
        client.graph.execute(signal=signal)
        signal.free()
    client.freed("context", "backend").no_findings()
    _left(t)


def _signals_left(t: Trial) -> None:
    client = t.client("plain").ready()
    Signal()
    signal = Signal(client.backend)
    with client.held():
        client.graph.execute_async(signal=signal)
        t.refused(signal.free, code=9000)
    signal.free()
    t.refused(signal.free, code=9003)
    t.refused(client.graph.execute, signal=signal, code=9003)
    client.freed("context", "backend")
    _left(t, "L4")


# fmt: off
CALLS = (
    keeps("R5", "finalize, then execute", lambda t: t.client("plain").ready().gives(6, 2)),
    breaks("R5", "execute before finalize, synchronously and asynchronously", 6023, _not_finalized),
    keeps("R10", "a binary declared persistent in aDSP mode and kept until the context is freed",
          lambda t: t.client(profile=_ADSP).ready().gives(2).freed("context", "binary")
          .no_findings()),
    keeps("R10", "a binary that is not declared persistent, freed after the context was created",
          lambda t: t.client(configs=[None]).ready().freed("binary").gives(2)),
    breaks("R10", "a binary that is not declared persistent in aDSP mode", 5010,
           lambda t: t.refused(Client, profile=_ADSP, configs=[None])),
    breaks("R10", "a binary, passed as a view, freed while its context still exists", 6039,
           lambda t: t.client().ready().refused(lambda c: c.freed("binary").run())),
    breaks("R10", "a binary outside the heaps, released while its context still exists", 6039,
           _binary_released),
    keeps("R11", "the graphs of a binary retrieved by name",
          lambda t: [t.client().on(name).holds(lambda c: c.graph.name in _NAMES, "another graph")
                     for name in _NAMES]),
    breaks("R11", "a new graph or the binary requested from a context made from a binary",
           1005, lambda t: t.client().refused(lambda c: c.context.graph_create("another"))
           .refused(lambda c: c.context.get_binary())),
    keeps("R12", "graph names read from the binary", _names_read),
    breaks("R12", "an unknown graph name, or none", (6002, 6003),
           lambda t: t.client().refused(lambda c: c.on("nothing"), 6002)
           .refused(lambda c: c.context.graph_retrieve(None), 6003)
           .refused(lambda c: c.on(""), 6003)),
    keeps("R13", "only one graph enabled, and that graph executed",
          lambda t: t.client(configs=[KEEP, _enable("counter")]).ready().gives(2)),
    breaks("R13", "enabling an unknown graph, or executing a disabled graph", (5010, 6035),
           lambda t: t.client(configs=[_enable("plain"), KEEP]).ready()
           .refused(lambda c: c.graph.execute(), 6035)
           .refused(lambda _: Client(configs=[_enable("nothing")]), 5010)),
    keeps("R14", "all properties queried in one call", _properties),
    keeps("R14", "hardware info passed when the backend is created", _hardware),
    breaks("R14", "unknown options for backend, context and graph", (4004, 5000, 6000),
           _unknown_options),
    breaks("R14", "known options that LPAI does not offer", (4003, 1000), _unsupported_options),
    breaks("R14", "several but not all cores, or a core that does not exist", 6000, _cores),
    keeps("R15", "island mode for the whole context, or for graphs by name", _islands),
    breaks("R15", "island mode for the whole context and for a graph together",
           5010, lambda t: t.refused(
        Client, profile=_ARM, configs=[custom(_ISLAND), custom(_ISLAND, "counter")])),
    keeps("R16", "a context freed after its last execution, and the backend freed after that",
          lambda t: t.client().ready().executed().freed("context", "backend").no_findings()),
    breaks("R16", "executing a graph after its context was freed", 6039, _executed_after_free),
    keeps("R19", "a binary for this hardware version, or for an older version",
          lambda t: [t.client(profile=profile(hw_version=version)).holds(
              lambda c: c.context.compiled.hw_version == "v6", "the binary is for other hardware")
              for version in ("v6", "v7")]),
    breaks("R19", "a binary for newer hardware, or of another format version", (5008, 5004),
           _wrong_hardware),
    breaks("R19", "strict compatibility required, but a binary for older hardware", 5011,
           lambda t: t.refused(Client, profile=_V7, configs=[_STRICT])),
    keeps("R20", "a graph with one node", lambda t: t.client("bare").ready().holds(*_FINALIZED)),
    breaks("R20", "a graph without nodes", 6022, _no_nodes),
    keeps("B1", "an undamaged binary", _names_read),
    breaks("B1", "a binary that is truncated, changed in one bit, or another kind of file",
           (5005, 30010),
           _damaged),
    keeps("P1", "a frame rate that the platform can reach, or a client that is not real-time",
          lambda t: [t.client(profile=_SLOW).set(custom(_PERF, perf)).ready().holds(*_FINALIZED)
                     for perf in (PerfCfg(fps=100),
                                  PerfCfg(1000, 10, ClientPerfType.NON_REAL_TIME))]),
    breaks("P1", "a real-time client with a frame rate that the platform cannot reach", 6022,
           lambda t: t.client(profile=_SLOW).set(custom(_PERF, PerfCfg(fps=101)))
           .refused(Client.ready)),
    keeps("R3", "inputs and outputs at aligned addresses",
          lambda t: t.client("outside").ready().gives(6, 2)),
    breaks("R3", "an input 4 bytes past an aligned address", 6004, _misaligned),
    keeps("R4", "a data size that is exact, rounded up, or in between", _sizes),
    breaks("R4", "a data size smaller than the tensor, or larger than its rounded-up size",
           6004, _wrong_sizes),
    keeps("R9", "NULL as data: inputs and outputs in scratch are used, without a copy",
          _in_scratch),
    keeps("R9", "execute returns 6038 and leaves the output unchanged until the window is full",
          _early),
    breaks("R9", "NULL as data, but inputs and outputs are not in scratch", 6004,
           lambda t: t.client("outside").ready().refused(lambda c: c.graph.execute())),
    breaks("R9", "an output freed before the execution, or while the execution is queued",
           6004, _freed_output),
    keeps("R17", "with a full queue, the next call waits", _waits),
    keeps("R17", "executions end in the order of their calls", _in_order),
    breaks("R17", "a call with a full queue, in a profile that does not wait", 6025, _full),
    keeps("R18", "one signal for successive calls", _signal_again),
    breaks("R18", "one signal for two calls at the same time", 6030, _signal_twice),
    keeps("M1", "two ranges of one fd, each registered once", _two_ranges),
    breaks("M1", "the same range registered twice; the second call registers nothing", 8002,
           _registered_twice),
    keeps("M2", "a range that ends where the file ends", _registers(_ROOM - 128, elements=32)),
    breaks("M2", "a range past the end of the file, a closed fd, or an unknown handle",
           (8003, 8001, 6004), _outside_the_fd),
    keeps("M3", "an offset that is a multiple of the start alignment",
          _registers(256, platform=profile(alignment="conservative"))),
    breaks("M3", "an offset that is not a multiple of the start alignment",
           8004, _registers_not(32, _CUSTOM)),
    keeps("M4", "ION in ARM mode", _registers(0, kind=_ION, platform=profile("arm"))),
    breaks("M4", "ION or DMA_BUF in x86 mode", 8005, _registers_not(0, _ION, _DMA_BUF)),
    keeps("L1", "the context freed before its backend", _freed_in_order),
    breaks("L1", "a backend freed before its context", FINDING,
           lambda t: t.client().ready().noted(lambda c: c.backend.free())),
    keeps("L2", "a context freed after its last execution", _freed_in_order),
    breaks("L2", "a context and its graph that are never freed", FINDING, _never),
    keeps("L3", "memory deregistered, then the context freed",
          lambda t: _registered_memory(t, deregister=True)),
    breaks("L3", "memory still registered when the context is freed", FINDING,
           lambda t: _registered_memory(t, deregister=False)),
    keeps("L4", "every signal freed", _signals),
    breaks("L4", "signals freed while in use, freed twice, never freed, or used after free",
           (9000, 9003), _signals_left),
)
