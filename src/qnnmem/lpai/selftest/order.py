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
from qnnmem.lpai.selftest.case import Suite, check, refused
from qnnmem.lpai.selftest.client import KEEP, Client, is_all
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

ORDER = Suite([])
_NAMES = ("counter", "double", "plain", "outside", "bare", "window", "layout")
_ISLAND = ContextCustomOption.ENABLE_ISLAND
_VERSION_AT = 8  # of the container's format, behind the magic


@ORDER.keeps("R5", "finalize, then execute")
def _finalized() -> None:
    check(is_all(Client("plain").ready().run(2), 6), "wrong result")


@ORDER.breaks("R5", "execute before finalize, also asynchronously")
def _not_finalized() -> None:
    client = Client("plain")
    client.give_scratch()
    told: list[int] = []
    with refused(6023, "R5"):
        client.graph.execute()
    with refused(6023, "R5"):
        client.graph.execute_async(notify=told.append)
    client.graph.finalize()
    client.graph.execute()
    check(told == [], "a refused executeAsync called back")


@ORDER.keeps("R10", "persistent binary promised and kept in aDSP mode")
def _binary_kept() -> None:
    client = Client(profile=profile("adsp")).ready()
    check(is_all(client.run(), 2), "wrong result")
    client.context.free()
    client.binary.free()
    check(client.rules == [], f"findings: {', '.join(client.rules)}")


@ORDER.keeps("R10", "binary freed at once where nothing was promised")
def _binary_copied() -> None:
    client = Client(configs=[None]).ready()
    client.binary.free()
    check(is_all(client.run(), 2), "wrong result")


@ORDER.breaks("R10", "no promise in aDSP mode")
def _not_promised() -> None:
    with refused(5010, "R10"):
        Client(profile=profile("adsp"), configs=[None])


@ORDER.breaks("R10", "binary overwritten while the context lives")
def _binary_changed() -> None:
    client = Client().ready()
    client.binary.free()  # the client passed a view, so freeing shows as overwritten bytes
    with refused(6039, "R10"):
        client.run()


@ORDER.breaks("R10", "binary dropped while the context lives")
def _binary_dropped() -> None:
    backend = Backend.create()
    content = bytearray(binary())
    made = Context.create_from_binary(backend, content, [KEEP, None], trusted=True)
    graph = made.graph_retrieve("bare")
    graph.finalize()
    del content
    with refused(6039, "R10"):
        graph.execute()


@ORDER.keeps("R11", "graphs of the binary retrieved")
def _retrieved() -> None:
    client = Client()
    found = [client.context.graph_retrieve(name).name for name in _NAMES]
    check(tuple(found) == _NAMES, "a graph is missing")


@ORDER.breaks("R11", "a graph added, a binary taken back")
def _added() -> None:
    client = Client()
    with refused(1005, "R11"):
        client.context.graph_create("another")
    with refused(1005, "R11"):
        client.context.get_binary()


@ORDER.keeps("R12", "names read from the binary")
def _names_read() -> None:
    names = tuple(info.graph_name for info in get_binary_info(binary()))
    check(names == _NAMES, "the binary's names are others")


@ORDER.breaks("R12", "an unknown name, and none")
def _unknown_name() -> None:
    client = Client()
    with refused(6002, "R12"):
        client.context.graph_retrieve("nothing")
    for name in (None, ""):
        with refused(6003, "R12"):
            client.context.graph_retrieve(name)


@ORDER.keeps("R13", "an enabled graph executes")
def _enabled() -> None:
    only = Config(ContextOption.ENABLE_GRAPHS, ["counter", None])
    check(is_all(Client(configs=[KEEP, only]).ready().run(), 2), "wrong result")


@ORDER.breaks("R13", "an unknown graph enabled, a disabled one executed")
def _disabled() -> None:
    with refused(5010, "R13"):
        Client(configs=[Config(ContextOption.ENABLE_GRAPHS, ["nothing"])])
    client = Client(configs=[Config(ContextOption.ENABLE_GRAPHS, ["plain"]), KEEP])
    client.ready()
    with refused(6035, "R13"):
        client.graph.execute()


@ORDER.keeps("R14", "every property asked in one call")
def _properties() -> None:
    client = Client()
    asked = [custom_property(n) for n in (0, 1)]
    client.backend.get_property([*asked, None])
    check(asked[1].value.value is False, "x86 mode asks for a persistent binary")
    sizes = [custom_property(n) for n in (1, 101)]
    client.graph.get_property([*sizes, None])
    check([s.value.value for s in sizes] == [256, 128], "the sizes are not those of the plan")


@ORDER.keeps("R14", "hardware info when the backend is created")
def _hardware() -> None:
    info = custom(0, HwInfo(Target.ADSP, HwVersion.V7))
    backend = Backend.create([info, None])
    check(backend.profile.hw_version is HwVersion.V7, "the hardware info did not arrive")
    check(backend.profile.require_persistent_binary, "the target did not arrive")


@ORDER.breaks("R14", "unknown options of backend, context and graph")
def _unknown_options() -> None:
    client = Client()
    good = custom_property(0)
    with refused(4004, "R14"):
        client.backend.get_property([good, custom_property(77), None])
    check(good.value.value is None, "a refused call answered one question")
    with refused(5000, "R14"):
        Client(configs=[Config(99)])
    with refused(6000, "R14"):
        client.graph.set_config([custom(77), None])
    with refused(6000, "R14"):
        client.graph.get_property([Property(5), None])


@ORDER.breaks("R14", "known options that LPAI does not offer")
def _unsupported_options() -> None:
    client = Client()
    with refused(4003, "R14"):
        client.backend.get_property([custom_property(BackendProperty.GET_PROP_ENPU_CORE_NUM), None])
    with refused(1000, "R14"):
        Client(configs=[Config(ContextOption.OEM_STRING, "x")])
    with refused(1000, "R14"):
        client.graph.set_config([Config(GraphConfigOption.PROFILE_HANDLE, 1), None])
    with refused(1000, "R14"):
        client.backend.device_create()


@ORDER.breaks("R14", "several cores but not all, a core that is not there")
def _cores() -> None:
    client = Client(profile=profile(core_count=3))
    for mask in (0b011, 0b1000):
        affinity = custom(GraphOption.SET_CFG_CORE_AFFINITY, CoreAffinityCfg(core_selection=mask))
        with refused(6000, "R14"):
            client.graph.set_config([affinity, None])
    check(client.graph.affinity == CoreAffinityCfg(), "a refused affinity took effect")


@ORDER.keeps("R15", "island for the context, or for graphs by name")
def _island() -> None:
    arm = profile("arm")
    Client(profile=arm, configs=[custom(_ISLAND)])
    names = [custom(_ISLAND, "counter"), custom(_ISLAND, "plain")]
    check(len(Client(profile=arm, configs=names).context.config.island) == 2, "one was lost")


@ORDER.breaks("R15", "both forms of island together")
def _both_islands() -> None:
    with refused(5010, "R15"):
        Client(profile=profile("arm"), configs=[custom(_ISLAND), custom(_ISLAND, "counter")])


@ORDER.keeps("R16", "context freed after the last execution")
def _freed_last() -> None:
    client = Client().ready()
    client.run()
    client.context.free()
    client.backend.free()
    check(client.rules == [], f"findings: {', '.join(client.rules)}")


@ORDER.breaks("R16", "execute after the context was freed")
def _executed_after_free() -> None:
    client = Client().ready()
    client.context.free()
    told: list[int] = []
    with refused(6039, "R16"):
        client.graph.execute()
    with refused(6039, "R16"):
        client.graph.execute_async(notify=told.append)
    with refused(6039, "R16"):
        client.graph.set_config([None])
    check(told == [], "a refused executeAsync called back")


@ORDER.keeps("R19", "a binary for this hardware, or for older one")
def _right_hardware() -> None:
    for version in ("v6", "v7"):
        made = Client(profile=profile(hw_version=version)).context.compiled
        check(made.hw_version == "v6", "the binary is for other hardware")


@ORDER.breaks("R19", "a binary for newer hardware, or of another version")
def _wrong_hardware() -> None:
    backend = Backend.create()
    with refused(5008, "R19"):
        Context.create_from_binary(backend, binary("v7"), trusted=True)
    other = bytearray(binary())
    other[_VERSION_AT] += 1
    with refused(5004, "R19"):
        Context.create_from_binary(backend, other, trusted=True)


@ORDER.breaks("R19", "strict compatibility with a binary for older hardware")
def _strict() -> None:
    strict = Config(ContextOption.BINARY_COMPATIBILITY, BinaryCompatibility.STRICT)
    with refused(5011, "R19"):
        Client(profile=profile(hw_version="v7"), configs=[strict])


@ORDER.keeps("R20", "a graph with one node")
def _one_node() -> None:
    check(Client("bare").ready().graph.is_finalized, "the graph is not finalized")


@ORDER.breaks("R20", "a graph without nodes")
def _no_nodes() -> None:
    empty = replace(context().graphs[0], name="empty", model=Model("empty", "onnx"), buffers=())
    compiled = replace(context(), graphs=(empty,))
    made = Context(Backend.create(), compiled, ContextConfig())
    with refused(6022, "R20"):
        made.graph_retrieve("empty").finalize()


@ORDER.keeps("B1", "a whole binary")
def _whole() -> None:
    check(len(get_binary_info(binary())) == len(_NAMES), "graphs are missing")


@ORDER.breaks("B1", "a binary cut short, changed in one bit, or of another kind")
def _damaged() -> None:
    backend = Backend.create()
    flipped = bytearray(binary())
    flipped[len(flipped) // 2] ^= 1
    for bad in (binary()[:-1], flipped, b"", b"\x08\x07\x12\x04onnx"):
        with refused(5005, "B1"):
            Context.create_from_binary(backend, bad, trusted=True)
        with refused(30010, "B1"):
            get_binary_info(bad)


@ORDER.keeps("P1", "a frame rate that can be kept, or a client that does not insist")
def _performance() -> None:
    slow = profile(inference_us=10_000)
    for perf in (PerfCfg(fps=100), PerfCfg(1000, 10, ClientPerfType.NON_REAL_TIME)):
        client = Client(profile=slow)
        client.graph.set_config([custom(GraphOption.SET_CFG_PERF_CFG, perf), None])
        check(client.ready().graph.is_finalized, "the graph is not finalized")


@ORDER.breaks("P1", "a real-time client that asks for too much")
def _too_fast() -> None:
    client = Client(profile=profile(inference_us=10_000))
    client.give_scratch()
    client.give_persistent()
    perf = custom(GraphOption.SET_CFG_PERF_CFG, PerfCfg(fps=101))
    client.graph.set_config([perf, None])
    with refused(6022, "P1"):
        client.graph.finalize()
