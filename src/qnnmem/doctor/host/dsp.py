"""Checks of access to the DSP: its device nodes, its state and its other users."""

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
    """Check that FastRPC's device nodes for the DSP exist and that this user can open them."""
    if isinstance(seen.nodes, Unseen):
        return Outcome(f"/dev/fastrpc-*: {seen.nodes.reason}", NOT_KNOWN)
    if not seen.nodes:
        if seen.dsps or (seen.has_dsp and not _is_desk(seen)):
            action = "load the kernel's FastRPC driver (`modprobe fastrpc`), and start the DSP"
            return Outcome("neither /dev/fastrpc-* nor /dev/adsprpc-smd exists", PROBLEM, action)
        return Outcome("no DSP device node; the x86 libraries need none", NOT_KNOWN)
    compute = {p: one for p, one in seen.nodes.items() if any(word in p for word in _COMPUTE)}
    if not compute:
        action = "start the cDSP, on which HTP runs; see the result of the DSP state check"
        return Outcome(f"no cDSP device node, only {_listed(seen.nodes)}", PROBLEM, action)
    open_to_us = {path: one for path, one in compute.items() if one.readable}
    closed = {path: one for path, one in compute.items() if not one.readable}
    if not open_to_us:
        action = (
            "add the user to the node's group, or change the node's permissions with a udev "
            "rule; a container must also be given the device node and permission to open it"
        )
        found = f"this user is not allowed to open {_listed(closed)}"
        # A security policy hides the owner of every node; the policy may differ for an app.
        is_hidden = not any(one.owner for one in closed.values())
        return Outcome(found, *((NOT_KNOWN,) if is_hidden else (PROBLEM, action)))
    found = f"{', '.join(open_to_us)} can be opened"
    if not closed:
        return Outcome(found, GOOD)
    found += f", {_listed(closed)} not"
    if seen.is_android:  # unsigned process domains, which apps get, use the open node
        return Outcome(found, GOOD)
    action = "give the user access to all nodes: which node is opened depends on FastRPC's release"
    return Outcome(found, NOT_KNOWN, action)


def _is_desk(seen: Survey) -> bool:
    return not isinstance(seen.kernel, Unseen) and "x86_64" in seen.kernel


def _listed(nodes: Mapping[str, Rights]) -> str:
    return ", ".join(f"{path} ({one.owner or 'owner hidden'})" for path, one in nodes.items())


def judge_state(seen: Survey) -> Outcome:
    """Check whether the DSP is running, and report its firmware."""
    if isinstance(seen.processors, Unseen):
        return Outcome(f"/sys/class/remoteproc: {seen.processors.reason}", NOT_KNOWN)
    if not seen.dsps:
        return Outcome("Linux manages no DSP on this machine", NOT_KNOWN)
    found = "; ".join(map(_in_words, seen.dsps))
    compute = [one for one in seen.dsps if "cdsp" in one.name] or list(seen.dsps)
    states = [one.state for one in compute]
    if any(not isinstance(state, Unseen) and state in _DOWN for state in states):
        action = (
            "find and correct the cause, usually missing firmware (`dmesg | grep remoteproc`); "
            "then restart the board"
        )
        return Outcome(found, PROBLEM, action, Origin.REPORTED)
    if all(not isinstance(state, Unseen) and state in _RUNNING for state in states):
        return Outcome(found, GOOD, origin=Origin.REPORTED)
    return Outcome(found, NOT_KNOWN, "search the kernel log for remoteproc", Origin.REPORTED)


def judge_lpai(seen: Survey) -> Outcome:
    """Check what LPAI needs: a running aDSP and LPAI's own library."""
    if isinstance(seen.processors, Unseen):
        return Outcome(f"/sys/class/remoteproc: {seen.processors.reason}", NOT_KNOWN)
    beside = [one for one in seen.dsps if "adsp" in one.name]
    libraries = [name for name in seen.libraries if name.startswith("libQnnLpai")]
    if not beside:
        return Outcome("Linux manages no aDSP on this machine", NOT_KNOWN)
    found = "; ".join((*map(_in_words, beside), *libraries[:3]))
    states = [one.state for one in beside]
    if libraries and any(state in _DOWN for state in states):
        action = "LPAI needs the aDSP; find out why it is down with `dmesg | grep remoteproc`"
        return Outcome(found, PROBLEM, action, Origin.REPORTED)
    if "libQnnLpai.so" not in libraries:
        action = (
            "copy the SDK's libQnnLpai.so and the library named by `shared_library_path` to the "
            "device"
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
        reason = text.reason if isinstance(text, Unseen) else "the command did not print a number"
        return Outcome(f"open connections: {reason}", NOT_KNOWN)
    count = int(text)
    # A user sees only the open files of their own processes.
    if count:
        found = f"{counted(count, 'open connection')} to a DSP in processes that this user can see"
        return Outcome(found, NOT_KNOWN, "end unneeded processes that hold a connection")
    if not isinstance(seen.user, Unseen) and seen.user.startswith("uid=0("):
        return Outcome("no process has a connection to a DSP", GOOD)
    return Outcome(
        "this user's processes have no connection; other users' processes are hidden", NOT_KNOWN
    )
