"""The table of host checks: for each check, its subject, related causes and judging function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from qnnmem.doctor.host import dsp, libraries, memory, system
from qnnmem.doctor.host.look import Unseen
from qnnmem.doctor.host.survey import Survey
from qnnmem.results.host import HostCheck, HostResult, HostVerdict, Outcome
from qnnmem.text import shorten

_WIDE = 400  # characters of a finding
_SHORT = ("mem_system_ram", "mem_unknown", "mem_leak", "mem_concurrency")
_BUFFERS = (*_SHORT, "mem_dsp_va", "mem_map_layer", "mem_multi_context", "mem_buffer_cap")


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a check: why the check matters, and which causes of failures it can explain."""

    id: str
    name: str
    why: str
    causes: tuple[str, ...]


CHECKS: tuple[tuple[Subject, Callable[[Survey], Outcome]], ...] = (
    (
        Subject(
            "memory",
            "available memory",
            "Weights, buffers and the DSP's own heap all take memory of the machine.",
            (*_SHORT, "mem_multi_context", "dsp_crash"),
        ),
        memory.judge_free,
    ),
    (
        Subject(
            "pressure",
            "memory pressure",
            "Under memory pressure, processes can be killed and DSP calls can time out.",
            (*_SHORT, "timeout"),
        ),
        memory.judge_pressure,
    ),
    (
        Subject(
            "group",
            "memory limit",
            "A container or service is often allowed far less memory than the machine has.",
            _SHORT,
        ),
        memory.judge_group,
    ),
    (
        Subject(
            "heap",
            "DMA heap",
            "Only memory from this heap can be shared with the DSP; no process's memory count "
            "includes it.",
            (*_BUFFERS, "access_denied"),
        ),
        memory.judge_heap,
    ),
    (
        Subject(
            "nodes",
            "DSP nodes",
            "FastRPC opens sessions on the DSP through these files and needs permission for them.",
            ("access_denied", "session_limit", "signing", "skel_missing", "driver_firmware"),
        ),
        dsp.judge_nodes,
    ),
    (
        Subject(
            "state",
            "DSP state",
            "A DSP that is down cannot run sessions, and a restart ends all its sessions.",
            ("dsp_crash", "driver_firmware", "session_limit", "timeout", "skel_missing"),
        ),
        dsp.judge_state,
    ),
    (
        Subject(
            "lpai",
            "LPAI",
            "LPAI runs models next to the aDSP, and LPAI's TCM exists only there.",
            ("tcm_memory_type", "mem_tcm_pool", "mem_tcm_slots"),
        ),
        dsp.judge_lpai,
    ),
    (
        Subject(
            "users",
            "DSP connections",
            "Every connection uses one of the DSP's few sessions and part of its address space.",
            ("session_limit", "mem_leak", "mem_concurrency", "mem_multi_context", "mem_dsp_va"),
        ),
        dsp.judge_users,
    ),
    (
        Subject(
            "transport",
            "FastRPC library",
            "QNN loads this library to reach the DSP; an app must name it in its manifest.",
            ("access_denied", "skel_missing", "version_mismatch"),
        ),
        libraries.judge_transport,
    ),
    (
        Subject(
            "libraries",
            "QNN libraries",
            "A stub works only with the skel of the same Hexagon version and release.",
            ("skel_missing", "version_mismatch", "soc_mismatch", "signing"),
        ),
        libraries.judge_pairs,
    ),
    (
        Subject(
            "releases",
            "QNN releases",
            "Library, system library, stub and skel work together only if all are from one "
            "release.",
            ("version_mismatch", "driver_firmware"),
        ),
        libraries.judge_releases,
    ),
    (
        Subject(
            "paths",
            "library paths",
            "The DSP searches these folders for its skel and takes the first skel that it finds.",
            ("skel_missing", "version_mismatch"),
        ),
        libraries.judge_paths,
    ),
    (
        Subject(
            "soc",
            "SoC",
            "A DSP refuses binaries and libraries for another Hexagon version.",
            ("soc_mismatch", "vtcm_config", "op_unsupported", "mem_vtcm", "mem_graph_limit"),
        ),
        system.judge_chip,
    ),
    (
        Subject(
            "driver",
            "driver and firmware",
            "The DSP's limits and faults depend on its firmware and on the kernel's driver.",
            ("driver_firmware", "mem_map_layer", "dsp_crash", "version_mismatch", "timeout"),
        ),
        system.judge_driver,
    ),
    (
        Subject(
            "selinux",
            "SELinux",
            "A security policy can deny access to a node even if file permissions allow it.",
            ("access_denied",),
        ),
        system.judge_selinux,
    ),
    (
        Subject(
            "limits",
            "process limits",
            "Every shared buffer is an open file, and models take address space of the process.",
            ("mem_buffer_cap", "mem_multi_context", "mem_unknown", "mem_system_ram"),
        ),
        system.judge_limits,
    ),
)


def judge(seen: Survey) -> HostResult:
    """Run all checks on the readings of a machine and return their results."""
    checks = tuple(_checked(subject, check(seen)) for subject, check in CHECKS)
    return HostResult(
        place=seen.place,
        system=system.describe(seen),
        has_dsp=seen.has_dsp,
        problems=sum(check.verdict is HostVerdict.PROBLEM for check in checks),
        checks=checks,
        blindness=seen.nodes.reason if isinstance(seen.nodes, Unseen) else "",
    )


def _checked(subject: Subject, outcome: Outcome) -> HostCheck:
    return HostCheck(
        shorten(outcome.found, _WIDE),
        outcome.verdict,
        shorten(outcome.action, _WIDE),
        outcome.origin,
        id=subject.id,
        name=subject.name,
        why=subject.why,
    )


def with_causes(report: HostResult, causes: Iterable[str]) -> HostResult:
    """Return the report; in its list, checks related to causes found in a log come first.

    Among the checks related to one cause, problems come first, then unknown results.
    """
    every = tuple(dict.fromkeys(causes))
    if not every:
        return report
    concerned = {subject.id: subject.causes for subject, _ in CHECKS}

    def rank(check: HostCheck) -> tuple[int, int]:
        ranks = [at for at, cause in enumerate(every) if cause in concerned[check.id]]
        return min(ranks, default=len(every)), _ORDER.index(check.verdict)

    checks = tuple(
        replace(check, concerns_cause=not set(every).isdisjoint(concerned[check.id]))
        for check in sorted(report.checks, key=rank)
    )
    return replace(report, checks=checks, causes=every)


_ORDER = (HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN, HostVerdict.GOOD)
