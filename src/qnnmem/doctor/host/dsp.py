"""Checks of access to the DSP: its device nodes, its state, its other users."""

from __future__ import annotations

from collections.abc import Mapping

from qnnmem.doctor.host.look import Rights, Unseen
from qnnmem.doctor.host.survey import Processor, Survey
from qnnmem.provenance import Origin
from qnnmem.results.host import HostVerdict, Outcome
from qnnmem.text import counted, shorten

GOOD, PROBLEM, NOT_KNOWN = HostVerdict.GOOD, HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN
_COMPUTE = ("cdsp", "adsprpc-smd")  # QNN's HTP runs on the compute DSP; phones have a single node
_RUNNING = ("running", "attached")
_DOWN = ("offline", "crashed", "suspended", "deleted", "invalid", "detached")


def judge_nodes(seen: Survey) -> Outcome:
    """Check the device nodes through which FastRPC reaches the DSP, and their permissions."""
    if isinstance(seen.nodes, Unseen):
        return Outcome(f"/dev/fastrpc-*: {seen.nodes.reason}", NOT_KNOWN)
    if not seen.nodes:
        if seen.dsps or (seen.has_dsp and not _is_desk(seen)):
            action = "load the kernel's FastRPC driver (`modprobe fastrpc`), and start the DSP"
            return Outcome("neither /dev/fastrpc-* nor /dev/adsprpc-smd exists", PROBLEM, action)
        return Outcome("no DSP device node; the x86 libraries need none", NOT_KNOWN)
    compute = {p: one for p, one in seen.nodes.items() if any(word in p for word in _COMPUTE)}
    if not compute:
        action = "HTP runs on the cDSP: start it; see the check of the DSP state"
        return Outcome(f"no cDSP device node, only {_listed(seen.nodes)}", PROBLEM, action)
    open_to_us = {path: one for path, one in compute.items() if one.readable}
    closed = {path: one for path, one in compute.items() if not one.readable}
    if not open_to_us:
        action = (
            "add the user to the group of the node, or change its permissions with a "
            "udev rule; a container also needs the device itself and permission for it"
        )
        found = f"this user may not open {_listed(closed)}"
        # Hidden by a policy, which may be different for an app.
        is_hidden = not any(one.owner for one in closed.values())
        return Outcome(found, *((NOT_KNOWN,) if is_hidden else (PROBLEM, action)))
    found = f"{', '.join(open_to_us)} can be opened"
    if not closed:
        return Outcome(found, GOOD)
    found += f", {_listed(closed)} not"
    if seen.is_android:  # unsigned process domains, which apps get, use the open node
        return Outcome(found, GOOD)
    action = "give the user access to both: FastRPC opens one of them, depending on its release"
    return Outcome(found, NOT_KNOWN, action)


def _is_desk(seen: Survey) -> bool:
    return not isinstance(seen.kernel, Unseen) and "x86_64" in seen.kernel


def _listed(nodes: Mapping[str, Rights]) -> str:
    return ", ".join(f"{path} ({one.owner or 'owner hidden'})" for path, one in nodes.items())


def judge_state(seen: Survey) -> Outcome:
    """Check whether the DSP runs, and with which firmware."""
    if isinstance(seen.processors, Unseen):
        return Outcome(f"/sys/class/remoteproc: {seen.processors.reason}", NOT_KNOWN)
    if not seen.dsps:
        return Outcome("Linux manages no DSP on this machine", NOT_KNOWN)
    found = "; ".join(map(_in_words, seen.dsps))
    compute = [one for one in seen.dsps if "cdsp" in one.name] or list(seen.dsps)
    states = [one.state for one in compute]
    if any(not isinstance(state, Unseen) and state in _DOWN for state in states):
        action = (
            "see the reason in the kernel log (`dmesg | grep remoteproc`), usually missing "
            "firmware; then restart the board"
        )
        return Outcome(found, PROBLEM, action, Origin.REPORTED)
    if all(not isinstance(state, Unseen) and state in _RUNNING for state in states):
        return Outcome(found, GOOD, origin=Origin.REPORTED)
    return Outcome(found, NOT_KNOWN, "search the kernel log for remoteproc", Origin.REPORTED)


def judge_lpai(seen: Survey) -> Outcome:
    """Check what LPAI needs: an aDSP that runs, and LPAI's own library."""
    if isinstance(seen.processors, Unseen):
        return Outcome(f"/sys/class/remoteproc: {seen.processors.reason}", NOT_KNOWN)
    beside = [one for one in seen.dsps if "adsp" in one.name]
    libraries = [name for name in seen.libraries if name.startswith("libQnnLpai")]
    if not beside:
        return Outcome("Linux manages no aDSP on this machine", NOT_KNOWN)
    found = "; ".join((*map(_in_words, beside), *libraries[:3]))
    states = [one.state for one in beside]
    if libraries and any(state in _DOWN for state in states):
        action = "LPAI needs the aDSP: see why it is down (`dmesg | grep remoteproc`)"
        return Outcome(found, PROBLEM, action, Origin.REPORTED)
    if "libQnnLpai.so" not in libraries:
        action = (
            "copy libQnnLpai.so of the SDK and the library in `shared_library_path` to the device"
        )
        return Outcome(f"{found}; no libQnnLpai.so in the usual folders", NOT_KNOWN, action)
    found += "; the LPAI version is unknown, and TCM needs v6"
    is_good = all(state in _RUNNING for state in states)
    return Outcome(found, GOOD if is_good else NOT_KNOWN, origin=Origin.REPORTED)


def _in_words(one: Processor) -> str:
    state = f"state {one.state.reason}" if isinstance(one.state, Unseen) else shorten(one.state, 40)
    firmware = "" if isinstance(one.firmware, Unseen) else f" ({shorten(one.firmware, 80)})"
    return f"{shorten(one.name, 40)} {state or 'without a state'}{firmware}"


def judge_users(seen: Survey) -> Outcome:
    """Check for other processes with open connections to the DSP."""
    text = seen.open_files
    if isinstance(text, Unseen) or not text.strip().isdecimal() or len(text.strip()) > 9:
        reason = text.reason if isinstance(text, Unseen) else "the answer is not a number"
        return Outcome(f"open connections: {reason}", NOT_KNOWN)
    count = int(text)
    # A user sees only the open files of their own processes.
    if count:
        found = f"{counted(count, 'open connection')} to a DSP in processes that this user can see"
        return Outcome(found, NOT_KNOWN, "end processes that hold a connection and are not needed")
    if not isinstance(seen.user, Unseen) and seen.user.startswith("uid=0("):
        return Outcome("no process has a connection to a DSP", GOOD)
    return Outcome(
        "no connection in this user's processes; those of other users are hidden", NOT_KNOWN
    )
