"""Checks of memory: free memory, pressure, control group limits and the heap shared with the DSP.

The thresholds are estimates. If less than a tenth of the memory or less than 512 MiB is free, Linux
and Android begin to reclaim memory and to kill processes. If processes spend a tenth of the time
waiting for memory, users notice.
"""

from __future__ import annotations

import re

from qnnmem.doctor.host.look import Unseen
from qnnmem.doctor.host.survey import Survey
from qnnmem.results.host import HostVerdict, Outcome
from qnnmem.text import counted
from qnnmem.units import format_size

_LEAST_FREE = 512 << 20
_LEAST_SHARE = 10  # minimum free share: a tenth
_SOME_PERCENT, _FULL_PERCENT = 10.0, 5.0
_DIGITS = 16  # digits of a plausible size
_LIMIT_LEAST = 2 << 30  # minimum of a control group: the host memory of a small language model

GOOD, PROBLEM, NOT_KNOWN = HostVerdict.GOOD, HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN


def judge_free(seen: Survey) -> Outcome:
    """Check how much memory is available without taking memory away from other processes."""
    if isinstance(seen.meminfo, Unseen):
        return Outcome(f"/proc/meminfo: {seen.meminfo.reason}", NOT_KNOWN)
    sizes = _sizes(seen.meminfo)
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable", sizes.get("MemFree"))
    if not total or available is None or available > total:
        return Outcome("/proc/meminfo contains no valid sizes", NOT_KNOWN)
    found = f"{format_size(available)} of {format_size(total)} available"
    if "SwapTotal" in sizes and "SwapFree" in sizes and sizes["SwapTotal"]:
        found += (
            f", swap {format_size(sizes['SwapFree'])} of {format_size(sizes['SwapTotal'])} free"
        )
    if available < max(_LEAST_FREE, total // _LEAST_SHARE):
        return Outcome(found, PROBLEM, "end unneeded processes or restart the machine, then retry")
    return Outcome(found, GOOD)


def _sizes(text: str) -> dict[str, int]:
    rows = re.findall(r"^(\w{1,30}):\s+(\d{1,15}) kB$", text, re.MULTILINE | re.ASCII)
    return {name: int(number) << 10 for name, number in rows}


def judge_pressure(seen: Survey) -> Outcome:
    """Check how much of the time processes wait for memory."""
    if isinstance(seen.pressure, Unseen):
        return Outcome(f"/proc/pressure/memory: {seen.pressure.reason}", NOT_KNOWN)
    rows = re.findall(
        r"^(some|full) avg10=(\d{1,3}\.\d+) avg60=(\d{1,3}\.\d+)", seen.pressure, re.MULTILINE
    )
    shares = {kind: max(float(last10), float(last60)) for kind, last10, last60 in rows}
    if "some" not in shares:
        return Outcome("/proc/pressure/memory contains no averages", NOT_KNOWN)
    some, full = shares["some"], shares.get("full", 0.0)
    found = (
        f"for {some:.1f} % of the time, at least one process waited for memory; "
        f"for {full:.1f} %, all processes waited at the same time"
    )
    if some >= _SOME_PERCENT or full >= _FULL_PERCENT:
        return Outcome(found, PROBLEM, "end other processes that use memory; see `top`")
    return Outcome(found, GOOD)


def judge_group(seen: Survey) -> Outcome:
    """Check the memory limit that a container or service sets through its control group."""
    if isinstance(seen.groups, Unseen) and not seen.groups.is_absent:
        return Outcome(f"/proc/self/cgroup: {seen.groups.reason}", NOT_KNOWN)
    if not seen.group_limits:
        return Outcome("no control group limits the memory of this user's processes", GOOD)
    limit = min(seen.group_limits)
    total = 0 if isinstance(seen.meminfo, Unseen) else _sizes(seen.meminfo).get("MemTotal", 0)
    if total and limit >= total:
        return Outcome("the control group allows all memory of the machine", GOOD)
    found = f"the control group allows {format_size(limit)}"
    if limit < _LIMIT_LEAST:
        action = (
            "raise the limit of the container (`docker run -m`) or service (systemd's MemoryMax)"
        )
        return Outcome(found, PROBLEM, action)
    return Outcome(found, GOOD)


def judge_heap(seen: Survey) -> Outcome:
    """Check that this user can open the heap for buffers shared with the DSP."""
    if isinstance(seen.heaps, Unseen):
        return Outcome(f"/dev/dma_heap: {seen.heaps.reason}", NOT_KNOWN)
    used = _buffers(seen)
    rows = {path: rights for path, rights in seen.heaps.items() if "dma_heap" in path}
    rows = rows or dict(seen.heaps)  # ION, before kernel 5.10
    if not rows:
        if not seen.has_dsp:
            return Outcome("no DMA heap, as on machines without a DSP", NOT_KNOWN)
        action = (
            "if FastRPC does not allocate the buffers itself, enable CONFIG_DMABUF_HEAPS in the "
            "kernel"
        )
        return Outcome(f"neither /dev/dma_heap/system nor /dev/ion exists{used}", NOT_KNOWN, action)
    usable = [path for path, rights in rows.items() if rights.readable]
    if usable:
        return Outcome(f"{', '.join(usable)} can be opened{used}", GOOD)
    named = ", ".join(f"{path} ({one.owner or 'hidden'})" for path, one in rows.items())
    found = f"this user is not allowed to open {named}{used}"
    if not any(one.owner for one in rows.values()):  # hidden by a policy; an app may have another
        return Outcome(found, NOT_KNOWN)
    action = "add the user to the group of the heap, or change the heap's udev rule"
    return Outcome(found, PROBLEM, action)


def _buffers(seen: Survey) -> str:
    """Return a clause with the size of shared buffers, which no process's memory count includes."""
    if isinstance(seen.buffers, Unseen):
        return ""
    words = (word for word in seen.buffers.split() if word.isascii() and word.isdigit())
    sizes = [int(word) for word in words if len(word) < _DIGITS]
    if not sizes:
        return ""
    return f"; {counted(len(sizes), 'shared buffer')}, {format_size(sum(sizes))} in total"
