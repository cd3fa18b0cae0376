"""The log of the HTP library during a compile or a load, as typed values.

A verbose log has up to a hundred megabytes, but only a few dozen relevant lines. `KEYWORDS` selects
the relevant lines in the raw bytes; `parse_log` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from qnnmem.htp.binary.context import GraphRam
from qnnmem.text import lazy_pattern

_KIB = 1 << 10
_MIB = 1 << 20

# A line is stored if it contains a keyword. All errors are stored, as harmless ones are few.
KEYWORDS = (
    *(b"<E>", b"ERROR:", b"[E:onnxruntime", b"bad_alloc", b"annot allocate memory"),
    *(b"terminate called", b"Unable to mmap", b"Backend build version", b"hexnn version"),
    *(b"DDR bandwidth summary", b"_bytes=", b"RAM usage summary", b"spillFillBufferSizes="),
    *(b"nativeKChannelSize=", b"nativeVChannelSize=", b"isSafeShareIO=", b"graphIOTensorSize="),
    *(b"OpDataSize=", b"constSize=", b"DDRTensorSize=", b"SharedWeightSize="),
    *(b"Option: vtcm_size = ", b"Option: memory_alloc_limit = ", b"Option: soc_type = "),
    *(b"Option: min_arch = ", b"Option: hvx_threads = ", b"Option: num_cores = "),
    *(b"estimated PD size", b"Graph memory usage summary", b"reserved space to"),
    *(b"chosen for context", b"not chosen", b"available PD", b"PD exhausted"),
    *(b"QnnGraph_finalize done", b"createFromBinary done", b"<W> VTCM", b"[qnnmem]"),
    # Lines that give the reason why a single node was refused.
    *(b"Validation PASSED for", b"Validation FAILED for", b"Operator type: ", b"REASON :"),
    b"mismatching",
)

_PREFIX = lazy_pattern(
    r"(?:\x1b\[[0-9;]*m)*[0-9]{4}-[0-9-]{5} [0-9:.]{8,20} \[([A-Z]):onnxruntime:[^\]]{0,200}\] ?"
)
_MARK = lazy_pattern(r" ?<([EWIVD])> ?")
_COLOUR = lazy_pattern(r"\x1b\[[0-9;]*m")


class LogLine(Struct, frozen=True):
    """A log line without the logger's time and source file; level is E, W, I, V, D or empty."""

    text: str
    level: str = ""


def read_line(raw: bytes | str) -> LogLine:
    """Return a log line of the library without the prefixes that loggers add."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    level = ""
    if prefix := _PREFIX.match(text):
        level, text = prefix[1], text[prefix.end() :]
    while mark := _MARK.match(text):  # some lines carry their level twice
        level, text = mark[1], text[mark.end() :]
    text = _COLOUR.sub("", text).strip()
    return LogLine(text, "E" if "::ERROR:" in text else level)


class Cause(Enum):
    """The reason for a refusal, according to the library's log."""

    GRAPH_LIMIT = "graph-limit"  # the graph exceeds the compiler's limit for this SoC
    OP_OVER_VTCM = "op-over-vtcm"  # one operator cannot be tiled into VTCM
    PD_FULL = "pd-full"  # no process domain has room for the context
    HOST_MEMORY = "host-memory"  # the machine or its memory limit
    OP_NOT_BUILDABLE = "op-not-buildable"  # unrelated to memory
    BAD_DEVICE = "bad-device"  # the library does not know the SoC
    TENSOR_TYPE = "tensor-type"  # a tensor has a type that QNN does not have


class Refusal(Struct, frozen=True):
    """A log line in which the library states why it gives up."""

    cause: Cause
    line: str
    need: int | None = None  # bytes
    limit: int | None = None  # bytes
    operator: str = ""


class DdrTraffic(Struct, frozen=True):
    """Bytes that one graph moves between DDR and VTCM per inference."""

    spill: int
    fill: int
    written: int
    read: int


class PdGraph(Struct, frozen=True):
    """The parts of the loader's estimate for one graph."""

    name: str
    weights: int  # rounded up to 2 MiB by the library
    io: int
    runlist: int
    spill_fill: int
    vtcm: int | None = None


class PdEstimate(Struct, frozen=True):
    """The bytes that the loader reserves in a process domain for one context."""

    context: int  # the library counts from 1
    total: int | None = None
    graphs: tuple[PdGraph, ...] = ()
    admitted: bool | None = None
    available: int | None = None  # bytes left in the domain, logged if the context is refused


class CompileLog(Struct, frozen=True):
    """All typed facts of a log; None or empty if the log does not contain them."""

    library_version: str | None = None
    vtcm_size: int | None = None  # bytes that the compiler used
    memory_alloc_limit: int | None = None  # bytes per graph
    traffic: tuple[DdrTraffic, ...] = ()  # one entry per graph
    ram_summary: tuple[GraphRam, ...] = ()
    pd_estimates: tuple[PdEstimate, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    codes: tuple[int, ...] = ()  # QNN error codes in order of appearance
    options: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total_traffic(self) -> DdrTraffic | None:
        """The traffic of all graphs together; None if the log has no complete summary."""
        if not self.traffic:
            return None
        return DdrTraffic(*map(sum, zip(*map(astuple, self.traffic), strict=True)))

    @property
    def cause(self) -> Refusal | None:
        """The first cause in the log; later causes are its consequences."""
        return self.refusals[0] if self.refusals else None


def host_memory(lines: Iterable[LogLine]) -> bool:
    """Return True if the log reports that the host ran out of memory."""
    return any(refusal.cause is Cause.HOST_MEMORY for refusal in find_refusals(lines))


def find_refusals(lines: Iterable[LogLine]) -> Iterator[Refusal]:
    """Yield the refusals in a log, in order."""
    for line in lines:
        for cause, pattern, units in _REFUSALS:
            if match := pattern.search(line.text):
                groups = match.groupdict()
                sizes = {
                    name: int(groups[name]) * units for name in ("need", "limit") if name in groups
                }
                yield Refusal(cause, line.text, operator=groups.get("op", ""), **sizes)
                break


_REFUSALS = tuple(
    (cause, lazy_pattern(pattern), units)
    for cause, pattern, units in (
        (
            Cause.GRAPH_LIMIT,
            r"requires estimated allocation of (?P<need>\d{1,18}) KB, limit is (?P<limit>\d{1,18})",
            _KIB,
        ),
        (
            Cause.OP_OVER_VTCM,
            r"Operator named (?P<op>\S{1,200}).* not sufficiently tiled to fit in TCM\. "
            r"Requires (?P<need>\d{1,18})",
            1,
        ),
        (
            Cause.PD_FULL,
            r"Failed to find available PD .*context size estimate (?P<need>\d{1,18})",
            1,
        ),
        (Cause.GRAPH_LIMIT, r"DDR-tensor memory pool is too big: (?P<need>\d{1,18}) bytes", 1),
        (Cause.HOST_MEMORY, r"bad_alloc|annot allocate memory|Unable to mmap local VTCM", 1),
        (Cause.HOST_MEMORY, r"Error creating thread: 11|failed to map segment|\bMemoryError\b", 1),
        (Cause.OP_NOT_BUILDABLE, r"could not create op:? ?(?P<op>\S{0,200})", 1),
        (Cause.BAD_DEVICE, r"Unknown config socModel|INVALID_CONFIG.*14001", 1),
        (Cause.TENSOR_TYPE, r"tensor datatype \d{1,9} not supported", 1),
    )
)


def parse_log(lines: Iterable[LogLine | str]) -> CompileLog:
    """Return the typed facts of a log; lines without such facts are skipped."""
    cleaned = [line if isinstance(line, LogLine) else read_line(line) for line in lines]
    draft = _Draft()
    for line in cleaned:
        draft.take(line.text)
    vtcm, limit = draft.options.get("vtcm_size"), draft.options.get("memory_alloc_limit")
    return CompileLog(
        library_version=draft.version,
        vtcm_size=int(vtcm) if vtcm and vtcm.isdigit() else None,
        memory_alloc_limit=int(limit) * _MIB if limit and limit.isdigit() else None,
        traffic=tuple(draft.traffic()),
        ram_summary=tuple(GraphRam(**fields) for fields in draft.ram),
        pd_estimates=tuple(draft.estimates()),
        refusals=tuple(find_refusals(cleaned)),
        codes=tuple(draft.codes),
        options=tuple(draft.options.items()),
        warnings=tuple(draft.warnings),
    )


_VERSION = lazy_pattern(r"(?:Backend build version: |hexnn_ver_)(v[0-9.]{3,40}[0-9])")
_OPTION = lazy_pattern(r"Option: (\w{1,60}) = (.{0,60})")
_TRAFFIC = lazy_pattern(r"\b(spill|fill|write_total|read_total)_bytes=(\d{1,18})")
_RAM_FIELD = {
    "spillFillBufferSizes": "spill_fill",
    "nativeKChannelSize": "native_k",
    "nativeVChannelSize": "native_v",
    "isSafeShareIO": "safe_share_io",
    "graphIOTensorSize": "io",
    "OpDataSize": "op_data",
    "constSize": "const",
    "DDRTensorSize": "ddr_tensors",
    "SharedWeightSize": "shared_weights",
}
_RAM = lazy_pattern(rf"^({'|'.join(_RAM_FIELD)})=(\d{{1,18}})")
_PD_GRAPH = lazy_pattern(
    r"Context (\d{1,9}) graph (.*) estimated PD size ~.*nonSharedWeight (\d{1,18}) B "
    r"I/O (\d{1,18}) B runlist (\d{1,18}) B spillfill (\d{1,18}) B"
)
_PD_VTCM = lazy_pattern(
    r"summary, context id (\d{1,9}), graph name:(.*), hexagon.* vtcm (\d{1,18}) "
)
_PD_TOTAL = lazy_pattern(r"Setting context (\d{1,9}) reserved space to (\d{1,18})")
_PD_CHOSEN = lazy_pattern(r"PD \d{1,9} chosen for context (\d{1,9})")
_PD_LEFT = lazy_pattern(r"not chosen for context (\d{1,9}) .*available space (\d{1,18})")
_PD_REFUSED = lazy_pattern(r"Failed to find available PD for contextId (\d{1,9}) ")
_CODE = lazy_pattern(r"Code: (\d{1,5})\b|\(err=(\d{1,5})\)|done\. status (0x[0-9a-f]{1,16})")
_TCM_WARNING = lazy_pattern(r"required TCM size \d+ too big for hardware.*")


class _Attempt(Struct):
    """A context that is about to be loaded into a process domain."""

    estimate: PdEstimate
    graphs: list[PdGraph] = field(default_factory=list)
    vtcm: dict[str, int] = field(default_factory=dict)  # by graph

    def change(self, **changes: Any) -> None:
        """Update the estimate with values from a line about the whole context."""
        self.estimate = replace(self.estimate, **changes)


class _Draft(Struct):
    """Facts from the lines read so far."""

    version: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    moved: list[dict[str, int]] = field(default_factory=list)
    ram: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[_Attempt] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, text: str) -> None:
        """Parse one line and store its facts."""
        if self.version is None and (match := _VERSION.search(text)):
            self.version = match[1]
        if match := _OPTION.search(text):
            self.options[match[1]] = match[2].strip()
        elif match := _TRAFFIC.search(text):
            self._take_traffic(match[1], int(match[2]))
        elif match := _RAM.match(text):
            self._take_ram(_RAM_FIELD[match[1]], int(match[2]))
        elif match := _TCM_WARNING.search(text):
            self.warnings.append(match[0])
        else:
            self._take_pd(text)
            self._take_code(text)

    def _take_traffic(self, kind: str, value: int) -> None:
        if not self.moved or kind in self.moved[-1]:
            self.moved.append({})
        self.moved[-1][kind] = value

    def _take_ram(self, name: str, value: int) -> None:
        if name == "spill_fill":
            self.ram.append({})
        if self.ram:
            self.ram[-1][name] = bool(value) if name == "safe_share_io" else value

    def _take_pd(self, text: str) -> None:
        if match := _PD_GRAPH.search(text):
            sizes = map(int, match.groups()[2:])
            self._attempt(int(match[1])).graphs.append(PdGraph(match[2], *sizes))
        elif match := _PD_VTCM.search(text):
            self._attempt(int(match[1])).vtcm[match[2]] = int(match[3])
        elif match := _PD_TOTAL.search(text):
            self._attempt(int(match[1])).change(total=int(match[2]))
        elif match := _PD_CHOSEN.search(text):
            self._attempt(int(match[1])).change(admitted=True)
        elif match := _PD_LEFT.search(text):
            self._attempt(int(match[1])).change(available=int(match[2]))
        elif match := _PD_REFUSED.search(text):
            self._attempt(int(match[1])).change(admitted=False)

    def _attempt(self, context: int) -> _Attempt:
        """Return the load that a line belongs to; after a refused load, its number is reused."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or (last.estimate.context, last.estimate.admitted) != (context, None):
            last = _Attempt(PdEstimate(context))
            self.attempts.append(last)
        return last

    def _take_code(self, text: str) -> None:
        if match := _CODE.search(text):
            word = match[1] or match[2] or match[3]
            code = int(word, 0) & 0xFFFF
            if code:
                self.codes.append(code)

    def traffic(self) -> Iterator[DdrTraffic]:
        """Yield the DDR traffic of each complete summary."""
        for moved in self.moved:
            if len(moved) == 4:
                names = ("spill", "fill", "write_total", "read_total")
                yield DdrTraffic(*(moved[name] for name in names))

    def estimates(self) -> Iterator[PdEstimate]:
        """Yield the process-domain estimate of each attempted load, in order."""
        for attempt in self.attempts:
            graphs = tuple(
                replace(graph, vtcm=attempt.vtcm.get(graph.name)) for graph in attempt.graphs
            )
            yield replace(attempt.estimate, graphs=graphs)
