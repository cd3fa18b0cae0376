"""The bill of a deployment file, with each binary counted once; a check of what the file says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import UNSET, Struct
from msgspec.structs import replace

from qnnmem.errors import LoadError
from qnnmem.htp.bill import LARGEST, bill_of, dominant_part, largest, total
from qnnmem.htp.binary.context import HtpContext, HtpGraph
from qnnmem.htp.binary.read import read_context, read_piece
from qnnmem.htp.carriers import is_carrier, opened
from qnnmem.htp.carriers.carrier import Carrier, Claim, Payload
from qnnmem.htp.first_fit import place
from qnnmem.htp.log import CompileLog
from qnnmem.provenance import Origin, Sourced
from qnnmem.qnn.tensor import TensorInfo
from qnnmem.results.carrier import CarriedBinary, CarrierFacts, CheckedClaim, UnreadPart
from qnnmem.results.footprint import PART_NAMES, Bill, BillParts, SizeRange, Trap, named_parts
from qnnmem.results.place import DOMAINS
from qnnmem.targets.socs import Soc, pd_budget, soc_by_id
from qnnmem.temporary_folder import temporary_folder
from qnnmem.text import counted, quote

_SUM = "sum over the context binaries"
_KV_RANK = 3
_NAMED = 4  # parts listed in a message


class CarriedContext(Struct, frozen=True):
    """A context binary of a deployment file, and its description."""

    payload: Payload
    context: HtpContext


class ReadCarrier(Struct, frozen=True):
    """A deployment file whose context binaries have been read."""

    carrier: Carrier
    contexts: tuple[CarriedContext, ...]
    unread: tuple[UnreadPart, ...]  # also parts whose binary is for another backend


@contextmanager
def read_carrier(path: Path) -> Iterator[ReadCarrier]:
    """Yield a deployment file whose binaries are read and stay accessible inside the block."""
    with opened(path) as carrier:
        contexts: list[CarriedContext] = []
        unread, kept = list(carrier.unread), {}
        for number, payload in enumerate(carrier.payloads):
            piece = payload.piece
            try:
                context = read_piece(piece)
            except LoadError as exc:
                unread.append(UnreadPart(piece.name, exc.reason, piece.size))
                continue
            kept[number] = len(contexts)
            contexts.append(CarriedContext(payload, context))
        claims = tuple(
            replace(
                claim,
                binaries=None
                if claim.binaries is None
                else tuple(kept[number] for number in claim.binaries if number in kept),
            )
            for claim in carrier.claims
        )
        yield ReadCarrier(replace(carrier, claims=claims), tuple(contexts), tuple(unread))


@contextmanager
def binaries_of(path: Path) -> Iterator[tuple[Path, ...]]:
    """Yield files that the library can load, each with one context binary.

    The binaries that a deployment file's bill counts are first copied to a temporary folder.
    """
    if not is_carrier(path):
        yield (path,)
        return
    with read_carrier(path) as read, temporary_folder() as folder:
        check_contexts(read)
        bill = carried_bill(read)
        rows = () if bill.carrier is UNSET else bill.carrier.binaries
        files = []
        for number, (carried, row) in enumerate(zip(read.contexts, rows, strict=True)):
            if row.is_billed:
                files.append(Path(folder, f"{number}.bin"))
                carried.payload.piece.copy(files[-1])
        yield tuple(files)


def check_contexts(read: ReadCarrier) -> None:
    """Raise LoadError with the reasons if no binary of the file can have a bill."""
    if read.contexts:
        return
    named = [f"{quote(part.name)}: {part.why}" for part in read.unread[:_NAMED]]
    why = f" ({'; '.join(named)})" if named else ""
    problem = f"contains no HTP context binary whose memory can be computed{why}"
    raise LoadError(read.carrier.path, problem)


def context_of(path: Path) -> HtpContext:
    """Return the context of a file; the graphs of a deployment file are merged into one context."""
    if not is_carrier(path):
        return read_context(path)
    with read_carrier(path) as read:
        check_contexts(read)
        contexts = [carried.context for carried in read.contexts]
    first = contexts[0]
    if len(contexts) == 1:
        return first
    builds = dict.fromkeys(context.build_id for context in contexts)
    return replace(
        first,
        build_id=", ".join(builds),
        soc_model=common_soc(contexts),
        dsp_arch=max((context.dsp_arch for context in contexts if context.dsp_arch), default=None),
        graphs=tuple(graph for context in contexts for graph in context.graphs),
        file_bytes=sum(context.file_bytes for context in contexts),
    )


def common_soc(contexts: Sequence[HtpContext]) -> int | None:
    """Return the SoC of all contexts; None if the SoCs differ or a context states no SoC."""
    models = {context.soc_model for context in contexts}
    return models.pop() if len(models) == 1 else None


def carried_bill(
    read: ReadCarrier,
    soc: Soc | None = None,
    logs: Sequence[CompileLog] = (),
    kept: Callable[[CarriedContext], CompileLog | None] = lambda _: None,
) -> Bill:
    """Return the bill of a deployment file.

    `logs` has the library's log for each file of `binaries_of`; `kept` returns the cached log of a
    binary.
    """
    check_contexts(read)
    file = str(read.carrier.path)
    bills = [bill_of(carried.context, soc, kept(carried), file=file) for carried in read.contexts]
    chosen = _chosen_group(read, bills, None if logs else soc)
    for number, log in zip(chosen, logs, strict=False):
        bills[number] = bill_of(read.contexts[number].context, soc, log, file=file)
    facts = facts_of(read, bills, chosen)
    traps = tuple(_traps(facts, read, chosen))
    whole = _combined([bills[number] for number in chosen], read, chosen)
    return replace(whole, traps=(*whole.traps, *traps), carrier=facts)


def _chosen_group(read: ReadCarrier, bills: Sequence[Bill], soc: Soc | None) -> tuple[int, ...]:
    """Return the indexes of the binaries that one device loads.

    These are the binaries without a group, and one group: the largest that was made for the SoC, or
    else the largest of all.
    """
    groups: dict[str, list[int]] = {}
    for number, carried in enumerate(read.contexts):
        groups.setdefault(carried.payload.group, []).append(number)
    ungrouped = groups.pop("", [])
    if not groups:
        return tuple(ungrouped)

    def is_for_soc(members: list[int]) -> bool:
        models = {read.contexts[number].context.soc_model for number in members}
        return soc is not None and models == {soc.model_id}

    def size(members: list[int]) -> int:
        return sum(bill.total.value for number in members if (bill := bills[number]).total)

    fitting = [members for members in groups.values() if is_for_soc(members)]
    return tuple(sorted([*ungrouped, *max(fitting or groups.values(), key=size)]))


def _combined(bills: Sequence[Bill], read: ReadCarrier, chosen: Sequence[int]) -> Bill:
    """Return one bill for several binaries: their sizes added up, but only the largest VTCM."""
    if len(bills) == 1:
        return bills[0]
    contexts = [read.contexts[number].context for number in chosen]
    parts: BillParts = {}
    for name in PART_NAMES:
        known = [bill.parts.get(name) for bill in bills]
        parts[name] = largest(known) if name == "VTCM" else total(known, _SUM)
    formula = f"{_SUM}: op data + weights + DDR tensors + spill/fill + IO; VTCM once"
    items = sorted(
        (item for bill in bills for item in bill.largest_io),
        key=lambda item: (-item.bytes, item.graph, item.name),
    )
    return replace(
        bills[0],
        file_bytes=sum(bill.file_bytes for bill in bills),
        build_id=", ".join(dict.fromkeys(bill.build_id for bill in bills)),
        made_for_soc_model=common_soc(contexts),
        dsp_arch=max((bill.dsp_arch for bill in bills if bill.dsp_arch), default=None),
        total=total((part for _, part in named_parts(parts)), formula),
        dominant=dominant_part(parts),
        parts=parts,
        io_exact=total((bill.io_exact for bill in bills), _SUM),
        vtcm_stored=largest(bill.vtcm_stored for bill in bills),
        compile_estimate=largest(bill.compile_estimate for bill in bills),
        process_domain=_domain(bills),
        graphs=tuple(graph for bill in bills for graph in bill.graphs),
        largest_io=tuple(items[:LARGEST]),
        traps=tuple({trap.id: trap for bill in bills for trap in bill.traps}.values()),
    )


def _domain(bills: Sequence[Bill]) -> SizeRange | None:
    """Return the need in one process domain: of all contexts if they fit, else of the largest.

    None if the need of a context is unknown.
    """
    needs = [bill.process_domain for bill in bills]
    known = [need for need in needs if need is not None]
    if len(known) < len(needs):
        return None
    low, high = (sum(getattr(need, side).value for need in known) for side in ("low", "high"))
    if high > bills[0].process_domain_budget.value:
        return max(known, key=lambda need: need.high.value)
    origin = Origin.MEASURED if all(need.is_exact for need in known) else Origin.COMPUTED
    source = f"{_SUM}; {known[0].high.source}"
    return SizeRange(Sourced(low, origin, source), Sourced(high, origin, source))


def _traps(facts: CarrierFacts, read: ReadCarrier, chosen: Sequence[int]) -> Iterator[Trap]:
    for claim in facts.broken:
        yield Trap("claim", f"the file states {claim.claimed}, but {claim.found} ({claim.what})")
    if sentence := different_socs(read, chosen):
        yield Trap("several-socs", sentence)
    if facts.unread:
        yield Trap("unread-part", unread_words(facts))
    yield from _domain_traps([facts.binaries[number].need_high for number in chosen])
    if len(chosen) < len(read.contexts):
        group = next(
            read.contexts[n].payload.group for n in chosen if read.contexts[n].payload.group
        )
        yield Trap(
            "groups", f"each device gets one group of binaries; the sizes are for {quote(group)}"
        )


def _domain_traps(needs: Sequence[Sourced | None]) -> Iterator[Trap]:
    """Yield the traps that follow if one process domain cannot hold all contexts."""
    sizes = [need.value for need in needs if need is not None]
    budget = pd_budget().value
    placed = place(sizes, budget)
    if len(sizes) < 2 or sum(sizes) <= budget:
        return
    words = f"the file's {len(sizes)} contexts need {sum(sizes):,} bytes in process domains"
    look = "`qnnmem place` shows the arrangement"
    if placed.fits or placed.too_large:
        sentence = (
            f"{words}, over the limit of one process domain, but the verdict compares only the "
            f"largest context with this limit; {look}"
        )
        yield Trap("several-domains", sentence)
        return
    count = len(placed.domains)
    sentence = (
        f"{words} and may take {count} domains, but a process has only {DOMAINS.value}; {look}"
    )
    yield Trap("too-many-domains", sentence)


def different_socs(read: ReadCarrier, chosen: Sequence[int]) -> str:
    """Return a sentence about binaries for different SoCs; empty if all are for one SoC."""
    names: dict[str, str] = {}
    for number in chosen:
        carried = read.contexts[number]
        names.setdefault(_soc_name(carried.context.soc_model), carried.payload.piece.name)
    if len(names) < 2:
        return ""
    named = ", ".join(f"{soc} ({quote(name)})" for soc, name in list(names.items())[:_NAMED])
    return f"the binaries are for different SoCs: {named}"


def unread_words(facts: CarrierFacts) -> str:
    """Return the sentence about the parts of a file that have no bill."""
    named = [f"{quote(part.name)}: {part.why}" for part in facts.unread[:_NAMED]]
    more = len(facts.unread) - len(named)
    named += [f"and {more:,} more"] if more else []
    count = counted(len(facts.unread), "part")
    return f"the memory of {count} of the file is unknown: " + "; ".join(named)


def facts_of(
    read: ReadCarrier, bills: Sequence[Bill] = (), chosen: Sequence[int] = ()
) -> CarrierFacts:
    """Return facts about a deployment file, with the bill of each binary if there are bills."""
    carrier = read.carrier
    rows = tuple(
        _row(carried, bills[number] if bills else None, not bills or number in chosen)
        for number, carried in enumerate(read.contexts)
    )
    loaded = [read.contexts[number] for number in chosen] if bills else list(read.contexts)
    return CarrierFacts(
        kind=carrier.kind,
        title=carrier.title,
        binaries=rows,
        unread=read.unread,
        host=carrier.host,
        state=_state(loaded),
        shared_spill_fill=_shared_spill(carrier, loaded),
        cpu_operators=carrier.cpu_operators,
        claims=tuple(_checked(claim, read) for claim in carrier.claims),
        notes=carrier.notes,
    )


def _row(carried: CarriedContext, bill: Bill | None, is_billed: bool) -> CarriedBinary:
    piece, need = carried.payload.piece, None if bill is None else bill.process_domain
    return CarriedBinary(
        name=piece.name,
        offset=piece.start,
        bytes=piece.size,
        used_by=carried.payload.used_by,
        group=carried.payload.group,
        graphs=tuple(graph.name for graph in carried.context.graphs),
        soc_model=carried.context.soc_model,
        total=None if bill is None else bill.total,
        need_low=None if need is None else need.low,
        need_high=None if need is None else need.high,
        spill_fill=max((graph.spill_fill or 0 for graph in carried.context.graphs), default=0),
        is_billed=is_billed,
    )


def _shared_spill(carrier: Carrier, contexts: Sequence[CarriedContext]) -> Sourced | None:
    sizes = [graph.spill_fill for carried in contexts for graph in carried.context.graphs]
    if not carrier.shares_spill_fill or None in sizes or not sizes:
        return None
    most = max(size for size in sizes if size is not None)
    source = "the largest spill/fill of all graphs, which share one buffer"
    return Sourced(most, Origin.COMPUTED, source)


# --- State: the KV cache among the inputs ---------------------------------------------------------


def _state(contexts: Sequence[CarriedContext]) -> Sourced | None:
    """Return the size of all KV caches, counting one per binary; None if there are no caches."""
    graphs = [carried.context.graphs for carried in contexts]
    total_bytes = sum(max(map(kv_bytes, of_binary), default=0) for of_binary in graphs)
    if not total_bytes:
        return None
    source = (
        "inputs with a dimension equal to the context length, or to the context length minus the "
        "new tokens, as in the attention mask; added up for the graph with the largest sum"
    )
    return Sourced(total_bytes, Origin.COMPUTED, source)


def kv_bytes(graph: HtpGraph) -> int:
    """Return the size of all KV-cache inputs; 0 if no attention mask identifies them."""
    sizes = _mask_sizes(graph)
    if sizes is None:
        return 0
    new, length = sizes
    wanted = {length - new, length} - {0}
    return sum(tensor.nbytes for tensor in graph.inputs if _is_cache(tensor, wanted))


def context_length(graph: HtpGraph) -> int | None:
    """Return the number of tokens that a graph attends to; None if it has no attention mask."""
    sizes = _mask_sizes(graph)
    return None if sizes is None else sizes[1]


def _mask_sizes(graph: HtpGraph) -> tuple[int, int] | None:
    for tensor in graph.inputs:
        if "mask" in tensor.name.lower() and len(tensor.dimensions) >= 2:
            new, length = tensor.dimensions[-2:]
            return (new, length) if 0 < new < length else None
    return None


def _is_cache(tensor: TensorInfo, wanted: set[int]) -> bool:
    if len(tensor.dimensions) < _KV_RANK or "mask" in tensor.name.lower():
        return False
    return bool(wanted & set(tensor.dimensions[1:]))


# --- Claims against the binaries ------------------------------------------------------------------


def _checked(claim: Claim, read: ReadCarrier) -> CheckedClaim:
    count = len(read.contexts)
    about = range(count) if claim.binaries is None else claim.binaries
    carried = [read.contexts[number] for number in about]
    found, holds = _CHECKS[claim.what](claim.value, [binary.context for binary in carried])
    names = [quote(binary.payload.piece.name) for binary in carried]
    named = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    where = f" of {named}" if len(names) < count else ""
    return CheckedClaim(what=f"{claim.what}{where}", claimed=claim.words, found=found, holds=holds)


def _soc(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    models = {context.soc_model for context in contexts}
    if models <= {None}:
        return "the binary does not state a SoC", None
    names = ", ".join(sorted(_soc_name(model) for model in models))
    return f"the binary is for {names}", models <= {value, None}


def _arch(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    versions = {context.dsp_arch for context in contexts} - {None}
    if not versions:
        return "the binary does not state a Hexagon version", None
    names = ", ".join(f"v{version}" for version in sorted(filter(None, versions)))
    return f"the binary is for Hexagon {names}", versions == {value}


def _vtcm(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    graphs = [graph for context in contexts for graph in context.graphs]
    sizes = [graph.vtcm for graph in graphs if graph.vtcm is not None]
    if not sizes:
        return "the binary does not state its VTCM", None
    return f"the binary asks for {counted(max(sizes), 'byte')}", max(sizes) <= value


def _spill(contexts: Sequence[HtpContext]) -> int | None:
    sizes = [graph.spill_fill for context in contexts for graph in context.graphs]
    return None if None in sizes else max((size or 0 for size in sizes), default=0)


def _largest_spill(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    size = _spill(contexts)
    if size is None:
        return "the binaries do not state their spill/fill", None
    return f"the largest spill/fill is {counted(size, 'byte')}", value >= size


def _spill_buffer(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    if not value:
        return "no buffer is shared: each context has a separate buffer", True
    return _largest_spill(value, contexts)


def _length(value: int, contexts: Sequence[HtpContext]) -> tuple[str, bool | None]:
    lengths = {context_length(graph) for context in contexts for graph in context.graphs} - {None}
    if not lengths:
        return "no graph has an attention mask that shows the context length", None
    longest = max(length for length in lengths if length is not None)
    return f"the longest attention mask is for {longest:,} tokens", longest == value


_CHECKS = {
    "SoC": _soc,
    "Hexagon": _arch,
    "VTCM": _vtcm,
    "largest spill/fill": _largest_spill,
    "spill/fill buffer": _spill_buffer,
    "context length": _length,
}


def _soc_name(model: int | None) -> str:
    if model is None:
        return "no SoC"
    soc = soc_by_id(model)
    return f"soc_model {model}" if soc is None else soc.name
