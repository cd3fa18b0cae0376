"""Cases about the order of calls, options and binaries: R5, R10 to R16, R19, R20, B1, P1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qnnmem.contract.regions import release
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
_ADSP, _ARM, _V7, _SLOW = (
    profile("adsp"),
    profile("arm"),
    profile(hw_version="v7"),
    profile(inference_us=10_000),
)
_ISLAND, _PERF = ContextCustomOption.ENABLE_ISLAND, GraphOption.SET_CFG_PERF_CFG
_STRICT = Config(ContextOption.BINARY_COMPATIBILITY, BinaryCompatibility.STRICT)
_VERSION_AT = 8  # of the container's format, behind the magic
_FINALIZED = (lambda c: c.graph.is_finalized, "the graph is not finalized")


def _create(content: Any) -> Context:
    return Context.create_from_binary(Backend.create(), content, [KEEP], trusted=True)


def _enable(*names: str) -> Config:
    return Config(ContextOption.ENABLE_GRAPHS, [*names, None])


def _execution_refused(t: Trial, client: Client) -> None:
    told: list[int] = []
    t.refused(client.graph.execute)
    t.refused(client.graph.execute_async, notify=told.append)
    t.check(told == [], "a refused executeAsync called back")


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
    t.check(names == _NAMES, "the binary has other names")


def _properties(t: Trial) -> None:
    client = t.client()
    asked, sizes = ([custom_property(n) for n in group] for group in ((0, 1), (1, 101)))
    client.backend.get_property([*asked, None])
    client.graph.get_property([*sizes, None])
    t.check(asked[1].value.value is False, "x86 mode asks for a persistent binary")
    t.check([s.value.value for s in sizes] == [256, 128], "the sizes are not those of the plan")


def _hardware(t: Trial) -> None:
    made = Backend.create([custom(0, HwInfo(Target.ADSP, HwVersion.V7)), None]).profile
    t.check(made.hw_version is HwVersion.V7, "the hardware info did not arrive")
    t.check(made.require_persistent_binary, "the target did not arrive")


def _unknown_options(t: Trial) -> None:
    client, good = t.client(), custom_property(0)
    t.refused(client.backend.get_property, [good, custom_property(77), None], code=4004)
    t.check(good.value.value is None, "a refused call answered one question")
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
    t.check(len(client.context.config.island) == 2, "one was lost")


def _wrong_hardware(t: Trial) -> None:
    t.refused(_create, binary("v7"), code=5008)
    other = bytearray(binary())
    other[_VERSION_AT] += 1
    t.refused(_create, other, code=5004)


def _no_nodes(t: Trial) -> None:
    empty = replace(context().graphs[0], name="empty", model=Model("empty", "onnx"), buffers=())
    made = Context(Backend.create(), replace(context(), graphs=(empty,)), ContextConfig())
    t.refused(made.graph_retrieve("empty").finalize)


def _damaged(t: Trial) -> None:
    flipped = bytearray(binary())
    flipped[len(flipped) // 2] ^= 1
    for bad in (binary()[:-1], flipped, b"", b"\x08\x07\x12\x04onnx"):
        t.refused(_create, bad, code=5005)
        t.refused(get_binary_info, bad, code=30010)


# fmt: off
CALLS = (
    keeps("R5", "finalize, then execute", lambda t: t.client("plain").ready().gives(6, 2)),
    breaks("R5", "execute before finalize, also asynchronously", 6023, _not_finalized),
    keeps("R10", "persistent binary promised and kept in aDSP mode",
          lambda t: t.client(profile=_ADSP).ready().gives(2).freed("context", "binary")
          .no_findings()),
    keeps("R10", "binary freed at once where nothing was promised",
          lambda t: t.client(configs=[None]).ready().freed("binary").gives(2)),
    breaks("R10", "no promise in aDSP mode", 5010,
           lambda t: t.refused(Client, profile=_ADSP, configs=[None])),
    breaks("R10", "binary freed while the context lives; a view of it was passed", 6039,
           lambda t: t.client().ready().refused(lambda c: c.freed("binary").run())),
    breaks("R10", "binary from outside the heaps released while the context lives", 6039,
           _binary_released),
    keeps("R11", "graphs of the binary retrieved",
          lambda t: [t.client().on(name).holds(lambda c: c.graph.name in _NAMES, "another graph")
                     for name in _NAMES]),
    breaks("R11", "a graph added, a binary taken back", 1005,
           lambda t: t.client().refused(lambda c: c.context.graph_create("another"))
           .refused(lambda c: c.context.get_binary())),
    keeps("R12", "names read from the binary", _names_read),
    breaks("R12", "an unknown name, and none", (6002, 6003),
           lambda t: t.client().refused(lambda c: c.on("nothing"), 6002)
           .refused(lambda c: c.context.graph_retrieve(None), 6003)
           .refused(lambda c: c.on(""), 6003)),
    keeps("R13", "an enabled graph executes",
          lambda t: t.client(configs=[KEEP, _enable("counter")]).ready().gives(2)),
    breaks("R13", "an unknown graph enabled, a disabled one executed", (5010, 6035),
           lambda t: t.client(configs=[_enable("plain"), KEEP]).ready()
           .refused(lambda c: c.graph.execute(), 6035)
           .refused(lambda _: Client(configs=[_enable("nothing")]), 5010)),
    keeps("R14", "every property asked in one call", _properties),
    keeps("R14", "hardware info when the backend is created", _hardware),
    breaks("R14", "unknown options of backend, context and graph", (4004, 5000, 6000),
           _unknown_options),
    breaks("R14", "known options that LPAI does not offer", (4003, 1000), _unsupported_options),
    breaks("R14", "several cores but not all, a core that is not there", 6000, _cores),
    keeps("R15", "island for the context, or for graphs by name", _islands),
    breaks("R15", "both forms of island together", 5010, lambda t: t.refused(
        Client, profile=_ARM, configs=[custom(_ISLAND), custom(_ISLAND, "counter")])),
    keeps("R16", "context freed after the last execution",
          lambda t: t.client().ready().executed().freed("context", "backend").no_findings()),
    breaks("R16", "execute after the context was freed", 6039, _executed_after_free),
    keeps("R19", "a binary for this hardware, or for older one",
          lambda t: [t.client(profile=profile(hw_version=version)).holds(
              lambda c: c.context.compiled.hw_version == "v6", "the binary is for other hardware")
              for version in ("v6", "v7")]),
    breaks("R19", "a binary for newer hardware, or of another version", (5008, 5004),
           _wrong_hardware),
    breaks("R19", "strict compatibility with a binary for older hardware", 5011,
           lambda t: t.refused(Client, profile=_V7, configs=[_STRICT])),
    keeps("R20", "a graph with one node", lambda t: t.client("bare").ready().holds(*_FINALIZED)),
    breaks("R20", "a graph without nodes", 6022, _no_nodes),
    keeps("B1", "a whole binary", _names_read),
    breaks("B1", "a binary cut short, changed in one bit, or of another kind", (5005, 30010),
           _damaged),
    keeps("P1", "a frame rate that can be kept, or a client that does not insist",
          lambda t: [t.client(profile=_SLOW).set(custom(_PERF, perf)).ready().holds(*_FINALIZED)
                     for perf in (PerfCfg(fps=100),
                                  PerfCfg(1000, 10, ClientPerfType.NON_REAL_TIME))]),
    breaks("P1", "a real-time client that asks for too much", 6022,
           lambda t: t.client(profile=_SLOW).set(custom(_PERF, PerfCfg(fps=101)))
           .refused(Client.ready)),
)
