"""A graph of a binary in the real library, which works in the memory that it is given."""

from __future__ import annotations

from pathlib import Path

from qnnmem.deadline import Deadline, not_in_time
from qnnmem.errors import CannotTell
from qnnmem.htp.binary.context import HtpGraph
from qnnmem.htp.qmem.layer import Places
from qnnmem.htp.remote.parcel import SharedPlace
from qnnmem.htp.requests import CallsReply, CallsRequest, CallTensor, ExecuteCall
from qnnmem.htp.worker import TIME_LIMIT_S, Worker
from qnnmem.qnn.enums import TensorMemType
from qnnmem.text import quote


class LibraryGraph:
    """Executes by `QnnGraph_execute` of libQnnHtp, in a child process.

    The child maps the shared files of inputs and outputs. So the library reads and writes the very
    pages that the application registered, at their offsets; nothing is copied on the way, except
    to a worker on another machine and back.
    """

    def __init__(
        self,
        binary: Path,
        graph: HtpGraph,
        soc_id: int,
        worker: Worker,
        time_limit_s: float = TIME_LIMIT_S,
        deadline: Deadline | None = None,
    ) -> None:
        """`time_limit_s` is for one run, unless a `deadline` is for all."""
        self._binary, self._graph, self._soc = binary.absolute(), graph, soc_id
        self._worker, self._time, self._ends = worker, time_limit_s, deadline

    def __call__(self, inputs: Places, outputs: Places) -> None:
        """Run once; the outputs are in their places then."""
        tensors: dict[int, CallTensor] = {}
        shared: list[SharedPlace] = []
        for side, places in ((self._graph.inputs, inputs), (self._graph.outputs, outputs)):
            for tensor in side:
                # For x86 there is only raw memory.
                raw = int(TensorMemType.RAW)
                tensors[tensor.id] = CallTensor(raw, tensor.nbytes, shared=len(shared))
                shared.append(places[tensor.name])
        call = ExecuteCall(self._graph.name, tensors)
        request = CallsRequest([self._binary], self._soc, [call])
        ends = self._ends or Deadline.after(self._time)
        outcome = self._worker.ask(request, places=shared, time_limit_s=ends.left_s)
        what = f"the library did not execute graph {quote(self._graph.name)}"
        if outcome.kind == "timeout" and self._ends is not None:
            raise not_in_time(self._binary, f"{what} within {ends.limit_s:g} s")
        if not outcome.is_done:
            raise CannotTell(f"{what}: {outcome.sentence[:300]}")
        if code := outcome.result(CallsReply).codes[0]:
            raise CannotTell(f"{what}: QnnGraph_execute gave {code}")
