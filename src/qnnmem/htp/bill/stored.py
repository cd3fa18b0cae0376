"""The bill of a context binary in a file: the same for every verb that reads one."""

from __future__ import annotations

from pathlib import Path

from qnnmem.htp.bill import Bill, bill_of
from qnnmem.htp.bill.kept_load import kept_load
from qnnmem.htp.binary.context import HtpContext
from qnnmem.htp.binary.read import read_context
from qnnmem.targets.socs import Soc


def stored_bill(path: Path, soc: Soc | None = None, context: HtpContext | None = None) -> Bill:
    """The bill for a SoC, by default the one the binary was made for; nothing is loaded.

    The process domain is the loader's own estimate if it loaded this binary here, else a range.
    """
    context = read_context(path) if context is None else context
    model_id = context.soc_model if soc is None else soc.model_id
    return bill_of(context, soc, kept_load(path, context, model_id))
