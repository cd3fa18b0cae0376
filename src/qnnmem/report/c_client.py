"""A C client for one model: `client.c` beside this file, with the model's plan put in."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from qnnmem.errors import UsageError
from qnnmem.lpai.client_plan import ClientGraph, ClientPlan, ClientTensor
from qnnmem.report.c_header import comment_text
from qnnmem.text import counted, quote

# C99 compilers must take strings up to this length; longer names become lists of characters.
_LONGEST_STRING = 4000
_ROW = 20  # characters of such a list in a line
_TEMPLATE = "client.c"


def render_client(plan: ClientPlan, tool: str, *, io_in_scratch: bool = False) -> str:
    """The whole program; inputs and outputs in buffers of the client, or where scratch has them."""
    if io_in_scratch:
        for graph in plan.graphs:
            _check_inside(graph)
    text = files(__package__).joinpath(_TEMPLATE).read_text("utf-8")
    # Taken apart before anything is put in: a name may look like a mark.
    opening, _, rest = text.partition("@ABOUT@")
    middle, _, end = rest.partition("@PLAN@")
    about = _about(plan, tool, io_in_scratch=io_in_scratch)
    first = "\n".join(f" * {line}".rstrip() for line in about).removeprefix(" * ")
    tables = "\n".join(_tables(plan, io_in_scratch=io_in_scratch))
    return f"{opening}{first}{middle}{tables}{end}"


def _check_inside(graph: ClientGraph) -> None:
    if not graph.is_inside:
        raise UsageError(
            f"graph {quote(graph.name)} has inputs or outputs that are not in scratch; "
            "let the client bring buffers for them"
        )


def _about(plan: ClientPlan, tool: str, *, io_in_scratch: bool) -> Iterator[str]:
    yield f"LPAI client of {comment_text(plan.source)}, made by {comment_text(tool)}."
    yield ""
    for graph in plan.graphs:
        kept = counted(graph.persistent_bytes, "byte")
        sizes = f"scratch {graph.scratch_bytes:,}, persistent {kept}"
        yield f"graph {comment_text(graph.name)}: {sizes}"
    yield ""
    if io_in_scratch:
        yield "Inputs and outputs stay in scratch, at the places that qnnmem has planned. They are"
        yield "right for the binary this file was made from: the vendor's compiler plans its own."
    else:
        yield "Inputs and outputs are in buffers of the client."


def _tables(plan: ClientPlan, *, io_in_scratch: bool) -> Iterator[str]:
    names = _Names()
    rows: list[str] = []
    graphs: list[str] = []
    for graph in plan.graphs:
        first = len(rows)
        graphs.append(_graph_row(graph, names, first))
        for kind, tensors in (("input", graph.inputs), ("output", graph.outputs)):
            rows += (_tensor_row(kind, tensor, names) for tensor in tensors)
    yield f"#define GRAPH_COUNT {len(plan.graphs)}u"
    yield f"#define PLAN_ALIGN {plan.align}u"
    yield f"#define IO_IN_SCRATCH {int(io_in_scratch)}"
    yield ""
    yield from names.lists
    yield "static const planned_tensor TENSORS[] = {"
    yield from rows or ['    {"", 0u, 0u}, /* C has no empty arrays */']
    yield "};"
    yield ""
    yield "static const planned_graph GRAPHS[GRAPH_COUNT] = {"
    yield from graphs
    yield "};"


def _graph_row(graph: ClientGraph, names: _Names, first: int) -> str:
    inputs, outputs = len(graph.inputs), len(graph.outputs)
    numbers = (graph.scratch_bytes, graph.persistent_bytes, first, inputs, first + inputs, outputs)
    listed = ", ".join(f"{number}u" for number in numbers)
    return f"    {{{names.of(graph.name)}, {listed}, {'true' if graph.has_io else 'false'}}},"


def _tensor_row(kind: str, tensor: ClientTensor, names: _Names) -> str:
    about = f"{kind}, {comment_text(tensor.kind)}" if tensor.kind else kind
    return (
        f"    {{{names.of(tensor.name)}, {tensor.nbytes}u, {tensor.offset or 0}u}}, /* {about} */"
    )


class _Names:
    """Names as C writes them; `lists` are declarations that some of them need."""

    def __init__(self) -> None:
        self.lists: list[str] = []

    def of(self, name: str) -> str:
        """An expression for the name."""
        data = name.encode("utf-8", "surrogatepass")
        if len(data) <= _LONGEST_STRING:
            return f'"{"".join(map(_character, data))}"'
        chosen = f"LONG_NAME_{len(self.lists)}"
        numbers = [f"(char){byte}" for byte in (*data, 0)]
        rows = [", ".join(numbers[at : at + _ROW]) for at in range(0, len(numbers), _ROW)]
        body = ",\n    ".join(rows)
        self.lists.append(f"static const char {chosen}[] = {{\n    {body}}};\n")
        return chosen


def _character(byte: int) -> str:
    """A byte in a string: octal has a fixed length, and no `?` is left to begin a trigraph."""
    plain = 0x20 <= byte < 0x7F and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"
