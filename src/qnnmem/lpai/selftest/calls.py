"""Cases about the order of calls, options and binaries: R5, R10 to R16, R19, R20, B1, P1."""

from __future__ import annotations

from dataclasses import replace

from qnnmem.ir import Model
from qnnmem.lpai.profiles import profile
from qnnmem.lpai.runtime.backend import Backend
from qnnmem.lpai.runtime.context import Context
from qnnmem.lpai.runtime.context_config import ContextConfig
from qnnmem.lpai.runtime.descriptors import (
    Config,
    CoreAffinityCfg,
    HwInfo,
    PerfCfg,
    Property,
    custom,
    custom_property,
)
from qnnmem.lpai.runtime.system_context import get_binary_info
from qnnmem.lpai.selftest.case import Trial, breaks, keeps
from qnnmem.lpai.selftest.client import KEEP, Client
from qnnmem.lpai.selftest.models import binary, context
from qnnmem.lpai.selftest.pools import gives
from qnnmem.qnn.enums import (
    BackendProperty,
    BinaryCompatibility,
    ClientPerfType,
    ContextCustomOption,
    ContextOption,
    GraphConfigOption,
    GraphOption,
    HwVersion,
    Target,
)

_NAMES = ("counter", "double", "plain", "outside", "bare", "window", "layout")
_ISLAND = ContextCustomOption.ENABLE_ISLAND
_ISLANDS = [custom(_ISLAND), custom(_ISLAND, "counter")]
_PERF = GraphOption.SET_CFG_PERF_CFG
_SLOW = profile(inference_us=10_000)
_STRICT = Config(ContextOption.BINARY_COMPATIBILITY, BinaryCompatibility.STRICT)
_VERSION_AT = 8  # of the container's format, behind the magic


def _enable(*names: str) -> Config:
    return Config(ContextOption.ENABLE_GRAPHS, [*names, None])


def _not_finalized(t: Trial) -> None:
    client = Client("plain")
    client.give_scratch()
    told: list[int] = []
    t.refused(client.graph.execute)
    t.refused(client.graph.execute_async, notify=told.append)
    client.graph.finalize()
    client.graph.execute()
    t.check(told == [], "a refused executeAsync called back")


def _binary_kept(t: Trial) -> None:
    client = Client(profile=profile("adsp")).ready()
    t.gives(client, 2)
    client.context.free()
    client.binary.free()
    t.no_findings(client)


def _binary_copied(t: Trial) -> None:
    client = Client(configs=[None]).ready()
    client.binary.free()
    t.gives(client, 2)


def _binary_changed(t: Trial) -> None:
    client = Client().ready()
    client.binary.free()  # the client passed a view, so freeing shows as overwritten bytes
    t.refused(client.run)


def _binary_dropped(t: Trial) -> None:
    content = bytearray(binary())
    made = Context.create_from_binary(Backend.create(), content, [KEEP, None], trusted=True)
    graph = made.graph_retrieve("bare")
    graph.finalize()
    del content
    t.refused(graph.execute)


def _retrieved(t: Trial) -> None:
    made = Client().context
    t.check(all(made.graph_retrieve(name).name == name for name in _NAMES), "a graph is missing")


def _added(t: Trial) -> None:
    made = Client().context
    t.refused(made.graph_create, "another")
    t.refused(made.get_binary)


def _names_read(t: Trial) -> None:
    names = tuple(info.graph_name for info in get_binary_info(binary()))
    t.check(names == _NAMES, "the binary has other names")


def _unknown_name(t: Trial) -> None:
    made = Client().context
    t.refused(made.graph_retrieve, "nothing", code=6002)
    for name in (None, ""):
        t.refused(made.graph_retrieve, name, code=6003)


def _disabled(t: Trial) -> None:
    t.refused(Client, configs=[_enable("nothing")], code=5010)
    t.refused(Client(configs=[_enable("plain"), KEEP]).ready().graph.execute, code=6035)


def _properties(t: Trial) -> None:
    client = Client()
    asked = [custom_property(n) for n in (0, 1)]
    client.backend.get_property([*asked, None])
    t.check(asked[1].value.value is False, "x86 mode asks for a persistent binary")
    sizes = [custom_property(n) for n in (1, 101)]
    client.graph.get_property([*sizes, None])
    t.check([s.value.value for s in sizes] == [256, 128], "the sizes are not those of the plan")


def _hardware(t: Trial) -> None:
    made = Backend.create([custom(0, HwInfo(Target.ADSP, HwVersion.V7)), None]).profile
    t.check(made.hw_version is HwVersion.V7, "the hardware info did not arrive")
    t.check(made.require_persistent_binary, "the target did not arrive")


def _unknown_options(t: Trial) -> None:
    client, good = Client(), custom_property(0)
    t.refused(client.backend.get_property, [good, custom_property(77), None], code=4004)
    t.check(good.value.value is None, "a refused call answered one question")
    t.refused(Client, configs=[Config(99)], code=5000)
    t.refused(client.set, custom(77), code=6000)
    t.refused(client.graph.get_property, [Property(5), None], code=6000)


def _unsupported_options(t: Trial) -> None:
    client, cores = Client(), custom_property(BackendProperty.GET_PROP_ENPU_CORE_NUM)
    t.refused(client.backend.get_property, [cores, None], code=4003)
    t.refused(Client, configs=[Config(ContextOption.OEM_STRING, "x")], code=1000)
    t.refused(client.set, Config(GraphConfigOption.PROFILE_HANDLE, 1), code=1000)
    t.refused(client.backend.device_create, code=1000)


def _cores(t: Trial) -> None:
    client = Client(profile=profile(core_count=3))
    for mask in (0b011, 0b1000):
        affinity = CoreAffinityCfg(core_selection=mask)
        t.refused(client.set, custom(GraphOption.SET_CFG_CORE_AFFINITY, affinity))
    t.check(client.graph.affinity == CoreAffinityCfg(), "a refused affinity took effect")


def _island(t: Trial) -> None:
    arm = profile("arm")
    Client(profile=arm, configs=[custom(_ISLAND)])
    made = Client(profile=arm, configs=[custom(_ISLAND, name) for name in ("counter", "plain")])
    t.check(len(made.context.config.island) == 2, "one was lost")


def _freed_last(t: Trial) -> None:
    client = Client().ready()
    client.run()
    client.context.free()
    client.backend.free()
    t.no_findings(client)


def _executed_after_free(t: Trial) -> None:
    client = Client().ready()
    client.context.free()
    told: list[int] = []
    t.refused(client.graph.execute)
    t.refused(client.graph.execute_async, notify=told.append)
    t.refused(client.set)
    t.check(told == [], "a refused executeAsync called back")


def _right_hardware(t: Trial) -> None:
    for version in ("v6", "v7"):
        made = Client(profile=profile(hw_version=version)).context.compiled
        t.check(made.hw_version == "v6", "the binary is for other hardware")


def _wrong_hardware(t: Trial) -> None:
    make, backend, other = Context.create_from_binary, Backend.create(), bytearray(binary())
    t.refused(make, backend, binary("v7"), trusted=True, code=5008)
    other[_VERSION_AT] += 1
    t.refused(make, backend, other, trusted=True, code=5004)


def _finalized(t: Trial) -> None:
    t.check(Client("bare").ready().graph.is_finalized, "the graph is not finalized")


def _no_nodes(t: Trial) -> None:
    empty = replace(context().graphs[0], name="empty", model=Model("empty", "onnx"), buffers=())
    made = Context(Backend.create(), replace(context(), graphs=(empty,)), ContextConfig())
    t.refused(made.graph_retrieve("empty").finalize)


def _whole(t: Trial) -> None:
    t.check(len(get_binary_info(binary())) == len(_NAMES), "graphs are missing")


def _damaged(t: Trial) -> None:
    backend, flipped = Backend.create(), bytearray(binary())
    flipped[len(flipped) // 2] ^= 1
    for bad in (binary()[:-1], flipped, b"", b"\x08\x07\x12\x04onnx"):
        t.refused(Context.create_from_binary, backend, bad, trusted=True, code=5005)
        t.refused(get_binary_info, bad, code=30010)


def _performance(t: Trial) -> None:
    for perf in (PerfCfg(fps=100), PerfCfg(1000, 10, ClientPerfType.NON_REAL_TIME)):
        client = Client(profile=_SLOW).set(custom(_PERF, perf)).ready()
        t.check(client.graph.is_finalized, "the graph is not finalized")


CALLS = (
    keeps("R5", "finalize, then execute", gives(6, "plain", 2)),
    breaks("R5", "execute before finalize, also asynchronously", 6023, _not_finalized),
    keeps("R10", "persistent binary promised and kept in aDSP mode", _binary_kept),
    keeps("R10", "binary freed at once where nothing was promised", _binary_copied),
    breaks(
        "R10",
        "no promise in aDSP mode",
        5010,
        lambda t: t.refused(Client, profile=profile("adsp"), configs=[None]),
    ),
    breaks("R10", "binary overwritten while the context lives", 6039, _binary_changed),
    breaks("R10", "binary dropped while the context lives", 6039, _binary_dropped),
    keeps("R11", "graphs of the binary retrieved", _retrieved),
    breaks("R11", "a graph added, a binary taken back", 1005, _added),
    keeps("R12", "names read from the binary", _names_read),
    breaks("R12", "an unknown name, and none", (6002, 6003), _unknown_name),
    keeps("R13", "an enabled graph executes", gives(2, configs=[KEEP, _enable("counter")])),
    breaks("R13", "an unknown graph enabled, a disabled one executed", (5010, 6035), _disabled),
    keeps("R14", "every property asked in one call", _properties),
    keeps("R14", "hardware info when the backend is created", _hardware),
    breaks(
        "R14",
        "unknown options of backend, context and graph",
        (4004, 5000, 6000),
        _unknown_options,
    ),
    breaks("R14", "known options that LPAI does not offer", (4003, 1000), _unsupported_options),
    breaks("R14", "several cores but not all, a core that is not there", 6000, _cores),
    keeps("R15", "island for the context, or for graphs by name", _island),
    breaks(
        "R15",
        "both forms of island together",
        5010,
        lambda t: t.refused(Client, profile=profile("arm"), configs=_ISLANDS),
    ),
    keeps("R16", "context freed after the last execution", _freed_last),
    breaks("R16", "execute after the context was freed", 6039, _executed_after_free),
    keeps("R19", "a binary for this hardware, or for older one", _right_hardware),
    breaks(
        "R19", "a binary for newer hardware, or of another version", (5008, 5004), _wrong_hardware
    ),
    breaks(
        "R19",
        "strict compatibility with a binary for older hardware",
        5011,
        lambda t: t.refused(Client, profile=profile(hw_version="v7"), configs=[_STRICT]),
    ),
    keeps("R20", "a graph with one node", _finalized),
    breaks("R20", "a graph without nodes", 6022, _no_nodes),
    keeps("B1", "a whole binary", _whole),
    breaks(
        "B1", "a binary cut short, changed in one bit, or of another kind", (5005, 30010), _damaged
    ),
    keeps("P1", "a frame rate that can be kept, or a client that does not insist", _performance),
    breaks(
        "P1",
        "a real-time client that asks for too much",
        6022,
        lambda t: t.refused(Client(profile=_SLOW).set(custom(_PERF, PerfCfg(fps=101))).ready),
    ),
)
