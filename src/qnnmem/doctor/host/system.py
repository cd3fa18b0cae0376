"""Checks of the system: SoC, kernel, firmware, SELinux and process limits."""

from __future__ import annotations

import re

from qnnmem.doctor.host.look import Unseen
from qnnmem.doctor.host.survey import Survey
from qnnmem.provenance import Origin
from qnnmem.results.host import HostVerdict, Outcome
from qnnmem.targets.socs import Soc, socs
from qnnmem.text import counted, shorten
from qnnmem.units import format_size

GOOD, PROBLEM, NOT_KNOWN = HostVerdict.GOOD, HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN
_LEAST_FILES = 1024  # minimum open files, because every shared buffer is an open file
_LEAST_SPACE = 8 << 30  # minimum address space, because models and their buffers are mapped
_BUILD = "ro.build.fingerprint"
_APP = re.compile(r"scontext=u:r:(?:shell|\w*_app)\w*:")  # SELinux domains of a user's programs
_DSP_WORDS = re.compile(r"fastrpc|dsprpc|dma_heap|\bcdsp|\badsp|qdsp|xdsp|rfsa", re.I)


def chip(seen: Survey) -> Soc | None:
    """Return the SoC that the machine reports; None if it reports no known name."""
    return _soc_in(" ".join(seen.chip_names))


def _soc_in(text: str) -> Soc | None:
    by_name = {soc.name.casefold(): soc for soc in socs()}
    for word in re.split(r"[,\s/_-]+", text.casefold()):
        plain = re.match(r"[a-z]{2,4}\d{4,5}", word)  # SM8750P is a faster SM8750
        for name in (word, plain[0] if plain else ""):
            if name in by_name:
                return by_name[name]
    return None


def describe(seen: Survey) -> str:
    """Return a short description of kernel and SoC."""
    kernel = "kernel not known" if isinstance(seen.kernel, Unseen) else shorten(seen.kernel.strip())
    soc = chip(seen)
    name = soc.name if soc is not None else next(iter(seen.chip_names), "")
    return f"{kernel}, {shorten(name, 40)}" if name else kernel


def judge_chip(seen: Survey) -> Outcome:
    """Check whether the SoC is an HTP target, and report its Hexagon version."""
    soc = chip(seen)
    if soc is None:
        names = ", ".join(shorten(name, 40) for name in seen.chip_names[:3])
        found = f"unknown SoC, named {names}" if names else "the machine does not name its SoC"
        return Outcome(found, NOT_KNOWN, "`qnnmem socs` lists the known SoCs", Origin.REPORTED)
    if not soc.has_htp:
        action = "compile for a backend that this SoC has: CPU, GPU or an older DSP"
        return Outcome(f"{soc.name} is not an HTP target", PROBLEM, action, Origin.REPORTED)
    vtcm = "" if soc.vtcm_bytes is None else f", {format_size(soc.vtcm_bytes.value)} of VTCM"
    found = f"{soc.name}, Hexagon v{soc.arch}{vtcm}"
    return Outcome(found, GOOD, origin=Origin.REPORTED)


def judge_driver(seen: Survey) -> Outcome:
    """Report driver and firmware versions; check whether a DSP's firmware is for another SoC."""
    words = [] if isinstance(seen.kernel, Unseen) else [f"kernel {shorten(seen.kernel.strip())}"]
    if seen.properties.get(_BUILD):
        words.append(f"build {shorten(seen.properties[_BUILD], 100)}")
    for one in seen.dsps[:3]:
        if not isinstance(one.firmware, Unseen) and one.firmware:
            words.append(f"{shorten(one.name, 30)} firmware {shorten(one.firmware, 60)}")
    shells = sorted(name for name in seen.libraries if name.startswith("fastrpc_shell"))
    words += [f"DSP shells {', '.join(shells[:4])}"] if shells else []
    found = ", ".join(words) or "no version can be read"
    if odd := _foreign_firmware(seen):
        action = "install the DSP firmware of this SoC's image, then restart the board"
        return Outcome(f"{odd}: {found}", PROBLEM, action, Origin.REPORTED)
    action = (
        "compare with a working device: no public table lists the firmware and driver of "
        "each release"
    )
    return Outcome(found, NOT_KNOWN, action, Origin.REPORTED)


def _foreign_firmware(seen: Survey) -> str:
    """Return a clause about firmware made for another Hexagon version; empty if there is none."""
    soc = chip(seen)
    if soc is None or soc.arch is None:
        return ""
    for one in seen.dsps:
        made_for = None if isinstance(one.firmware, Unseen) else _soc_in(one.firmware)
        if made_for is not None and made_for.arch not in (None, soc.arch):
            of = f"{made_for.name} (Hexagon v{made_for.arch})"
            name = shorten(one.name, 30)
            return f"the firmware of {name} is for {of}, but the SoC is {soc.name}"
    return ""


def judge_selinux(seen: Survey) -> Outcome:
    """Check whether SELinux is enforcing, and whether it denied access to the DSP."""
    if not isinstance(seen.denials, Unseen):
        lines = [line for line in seen.denials.splitlines() if "avc:" in line and "denied" in line]
        about = [line for line in lines if _DSP_WORDS.search(line)]
        if about:
            ours = [line for line in about if _APP.search(line)]  # denials for daemons are common
            last = shorten((ours or about)[-1].strip(), 200)
            found = f"{counted(len(about), 'denial')} of access to a DSP, e.g. {last}"
            action = "run in a domain that is allowed to use the DSP, or change the policy"
            return Outcome(found, PROBLEM if ours else NOT_KNOWN, action, Origin.REPORTED)
    if isinstance(seen.selinux, Unseen):
        if seen.selinux.is_absent and not seen.is_android:
            return Outcome("no SELinux on this machine", GOOD)
        return Outcome(f"mode: {seen.selinux.reason}", NOT_KNOWN)
    if seen.selinux.strip() == "0":
        return Outcome("permissive: SELinux denies nothing", GOOD)
    if seen.selinux.strip() != "1":
        return Outcome("mode: /sys/fs/selinux/enforce contains no valid value", NOT_KNOWN)
    if not isinstance(seen.denials, Unseen):
        return Outcome("enforcing; the log contains no denial of access to a DSP", GOOD)
    action = "look for `avc: denied` in the log of the failing run"
    return Outcome("enforcing; this user cannot read the log of denials", NOT_KNOWN, action)


def judge_limits(seen: Survey) -> Outcome:
    """Check a process's limits on open files, locked memory and address space."""
    if isinstance(seen.limits, Unseen):
        return Outcome(f"/proc/self/limits: {seen.limits.reason}", NOT_KNOWN)
    rows = re.findall(
        r"^Max (open files|locked memory|address space) +(\d{1,20}|unlimited)\b",
        seen.limits,
        re.MULTILINE | re.ASCII,
    )
    soft = {name: None if word == "unlimited" else int(word) for name, word in rows}
    if "open files" not in soft:
        return Outcome("/proc/self/limits contains no limits", NOT_KNOWN)
    files, space = soft["open files"], soft.get("address space")
    words = [f"{'any number of' if files is None else f'{files:,}'} open files"]
    if "locked memory" in soft:
        locked = soft["locked memory"]
        words.append(f"locked memory {'unlimited' if locked is None else format_size(locked)}")
    if space is not None:
        words.append(f"address space {format_size(space)}")
    found = ", ".join(words)
    if files is not None and files < _LEAST_FILES:
        return Outcome(found, PROBLEM, f"raise the limit on files: `ulimit -n {_LEAST_FILES}`")
    if space is not None and space < _LEAST_SPACE:
        return Outcome(found, PROBLEM, "remove the address space limit: `ulimit -v unlimited`")
    return Outcome(found, GOOD)
