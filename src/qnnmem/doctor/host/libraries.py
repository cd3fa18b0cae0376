"""Checks that the libraries are in the searched folders and that their versions match.

A stub runs on the application processor, its skel on the DSP: `libQnnHtpV75Stub.so` calls
`libQnnHtpV75Skel.so`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from qnnmem.doctor.host.look import Unseen
from qnnmem.doctor.host.survey import DSP_VARIABLES, HOST_VARIABLE, Names, Survey
from qnnmem.doctor.host.system import chip
from qnnmem.results.host import HostVerdict, Outcome
from qnnmem.text import counted, plain_or_quoted, shorten

GOOD, PROBLEM, NOT_KNOWN = HostVerdict.GOOD, HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN
_TRANSPORT = re.compile(r"lib[a-z]{0,2}dsprpc\.so")
_PAIR = re.compile(r"lib(?:Qnn|Snpe)(?:Htp|Dsp)V(\d{2,3})(Stub|Skel)\.so")
_SHOWN = 6
_RPCMEM = ("rpcmem_alloc", "rpcmem_free", "rpcmem_to_fd")  # functions for shared memory
_ANY_RPC = "remote_handle_open"  # exists in every FastRPC library: proves that its bytes were read


def judge_transport(seen: Survey) -> Outcome:
    """Check that FastRPC's own library is installed and supports shared memory."""
    homes = _homes(seen.host_folders, _TRANSPORT)
    if homes:
        found = _places(homes)
        for path, names in seen.functions.items():
            lacking = [name for name in _RPCMEM if name not in names]
            if lacking and _ANY_RPC in names and "libcdsprpc" in path:
                what = f"{plain_or_quoted(path)} has no {lacking[0]}, so QNN cannot share memory"
                action = "install a newer image on the device: its FastRPC library is too old"
                return Outcome(f"{what}: {found}", PROBLEM, action)
        return Outcome(found, GOOD)
    if not seen.has_dsp:
        return Outcome("no libcdsprpc.so, as on machines without a DSP", NOT_KNOWN)
    hidden = _hidden(seen.host_folders)
    found = "libcdsprpc.so is in none of the usual folders"
    if hidden or not seen.nodes or isinstance(seen.nodes, Unseen):
        return Outcome(f"{found}{_but(hidden)}", NOT_KNOWN)
    action = "install the FastRPC libraries of the board's image (package fastrpc or libfastrpc)"
    return Outcome(found, PROBLEM, action)


def judge_pairs(seen: Survey) -> Outcome:
    """Check that QNN's stubs and skels exist in pairs, for the Hexagon version of the SoC."""
    stubs = _versions({**seen.host_folders, **seen.dsp_folders}, "Stub")
    skels = _versions(seen.dsp_folders, "Skel")
    astray = _versions(seen.host_folders, "Skel") - skels
    ours = [name for name in seen.libraries if name.startswith("libQnn")]
    if not ours:
        action = "programs often ship their own QNN libraries: check the failing program's folder"
        return Outcome("no QNN library in the usual folders", NOT_KNOWN, action)
    found = f"{counted(len(ours), 'library') if len(ours) == 1 else f'{len(ours):,} libraries'}"
    found += f" from QNN; stubs for {_list(stubs)}; skels for {_list(skels | astray)}"
    known = chip(seen)
    arch = known.arch if known is not None else None
    wanted = {arch} if arch is not None else stubs
    has = f"; {known.name} has v{arch}" if known is not None and arch is not None else ""
    if wanted & skels and (not stubs or wanted & skels & stubs):
        return Outcome(found + has, GOOD)
    return Outcome(found + has, *_what_is_missing(seen, wanted, stubs, skels, astray))


def _what_is_missing(
    seen: Survey, wanted: set[int], stubs: set[int], skels: set[int], astray: set[int]
) -> tuple[HostVerdict, str]:
    if wanted & astray:
        name = _list(wanted & astray)
        where = next(iter(_homes(seen.host_folders, _skel(wanted & astray))), "its folder")
        words = f"the skel for {name} is in a folder that a DSP does not search; add"
        return NOT_KNOWN, f"{words} {plain_or_quoted(where)} to ADSP_LIBRARY_PATH"
    if wanted & skels:
        words = f"add libQnnHtpV{min(wanted & skels)}Stub.so from the same release as the skel"
        return PROBLEM, words
    hidden = _hidden(seen.dsp_folders)
    if not wanted or hidden or not (stubs or skels or astray):
        return NOT_KNOWN, "a skel might be in a folder that this user cannot see" if hidden else ""
    name = f"libQnnHtpV{min(wanted)}Skel.so"
    words = f"copy {name} from the same release as the other libraries to the device, and"
    return PROBLEM, f"{words} add its folder to ADSP_LIBRARY_PATH"


def judge_releases(seen: Survey) -> Outcome:
    """Check that libQnnHtp.so, libQnnSystem.so, stub and skel state the same build id."""
    known = {
        path: max(names, key=len)
        for path, names in seen.releases.items()
        if len(set(map(_release, names))) == 1
    }
    if len(known) < 2:
        action = "compare the libraries with those of the SDK that the program was built with"
        return Outcome("fewer than two QNN libraries state their release", NOT_KNOWN, action)
    found = ", ".join(f"{plain_or_quoted(path)} {known[path]}" for path in sorted(known)[:_SHOWN])
    action = "copy libQnnHtp.so, libQnnSystem.so, stub and skel from one SDK release to the device"
    releases = {path: _release(build) for path, build in known.items()}
    if odd := _mixed(releases):
        return Outcome(f"{odd}: {found}", PROBLEM, action)
    builds = {path: build for path, build in known.items() if build != releases[path]}
    if odd := _mixed(builds):
        what = f"one release, but {odd}; a stub may refuse a skel with another build id"
        return Outcome(f"{what}: {found}", NOT_KNOWN, action)
    firmware = "; no public table lists the matching firmware and kernel driver"
    return Outcome(f"{found}{firmware}", GOOD)


def _release(build: str) -> str:
    return ".".join(build.split(".")[:3])


def _mixed(known: Mapping[str, str]) -> str:
    """Return a clause about libraries with different versions; empty if all match."""
    folders: dict[str, set[str]] = {}
    for path, version in known.items():
        folders.setdefault(path.rpartition("/")[0], set()).add(version)
    if any(len(versions) > 1 for versions in folders.values()):
        return f"one folder contains libraries of {max(map(len, folders.values()))} versions"
    parts = {(_PAIR.fullmatch(path.rpartition("/")[2]), one) for path, one in known.items()}
    of_skels = {(pair[1], one) for pair, one in parts if pair and pair[2] == "Skel"}
    for pair, version in parts:
        others = {one for arch, one in of_skels if pair and arch == pair[1]}
        if pair and pair[2] == "Stub" and others and version not in others:
            skels = ", ".join(others)
            return f"the stub for v{pair[1]} is from {version}, but its skel is from {skels}"
    return ""


def judge_paths(seen: Survey) -> Outcome:
    """Check the environment variables that name library folders."""
    if isinstance(seen.variables, Unseen):
        return Outcome(f"environment: {seen.variables.reason}", NOT_KNOWN)
    given = {name: seen.variables[name] for name in _VARIABLES if seen.variables.get(name)}
    if not given:
        found = f"neither {DSP_VARIABLES[0]} nor {HOST_VARIABLE} is set"
        if seen.is_android:
            return Outcome(f"{found} in this shell; an app sets these variables itself", NOT_KNOWN)
        return Outcome(f"{found}: the usual folders are searched", GOOD)
    found = ", ".join(f"{name}={shorten(text, 80)}" for name, text in given.items())
    for name, text in given.items():
        if name in DSP_VARIABLES and ":" in text:
            action = f"separate the folders in {name} with `;`, as FastRPC expects"
            return Outcome(found, PROBLEM, action)
    places = {**seen.host_folders, **seen.dsp_folders}
    words = [word for text in given.values() for word in re.split("[;:]", text)]
    # A name that is not UTF-8 could not be queried exactly.
    named = [word.strip().rstrip("/") for word in words if "\N{REPLACEMENT CHARACTER}" not in word]
    gone = [one for one in named if isinstance(at := places.get(one), Unseen) and at.is_absent]
    if gone:
        action = f"{plain_or_quoted(gone[0])} does not exist; name the folder with the libraries"
        return Outcome(found, PROBLEM, action)
    return Outcome(found, GOOD)


_VARIABLES = (*DSP_VARIABLES, HOST_VARIABLE)


def _versions(folders: Mapping[str, Names | Unseen], kind: str) -> set[int]:
    names = (name for one in folders.values() if not isinstance(one, Unseen) for name in one)
    pairs = (_PAIR.fullmatch(name) for name in names)
    return {int(pair[1]) for pair in pairs if pair and pair[2] == kind}


def _skel(versions: Iterable[int]) -> re.Pattern[str]:
    return re.compile(f"libQnnHtpV(?:{'|'.join(map(str, sorted(versions)))})Skel.so")


def _homes(folders: Mapping[str, Names | Unseen], wanted: re.Pattern[str]) -> dict[str, Names]:
    """Return the folders that contain wanted files, with the names of those files."""
    found = {}
    for folder, names in folders.items():
        if not isinstance(names, Unseen):
            chosen = tuple(name for name in names if wanted.match(name))
            if chosen:
                found[folder] = chosen
    return found


def _hidden(folders: Mapping[str, Names | Unseen]) -> list[str]:
    return [
        at for at, names in folders.items() if isinstance(names, Unseen) and not names.is_absent
    ]


def _but(hidden: list[str]) -> str:
    return f"; this user cannot list {plain_or_quoted(hidden[0])}" if hidden else ""


def _places(homes: Mapping[str, Names]) -> str:
    every = [f"{plain_or_quoted(folder)}/{name}" for folder in homes for name in homes[folder]]
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _list(versions: set[int]) -> str:
    return ", ".join(f"v{version}" for version in sorted(versions)[:_SHOWN]) or "none"
