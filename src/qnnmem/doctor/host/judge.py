"""The table of checks: subject, causes, and the judging function."""

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
    """Subject of a check: its importance, and the failure causes it relates to."""

    id: str
    name: str
    why: str
    causes: tuple[str, ...]


CHECKS: tuple[tuple[Subject, Callable[[Survey], Outcome]], ...] = (
    (
        Subject(
            "memory",
            "available memory",
            "Weights, buffers and the DSP's own heap come from the memory of the machine.",
            (*_SHORT, "mem_multi_context", "dsp_crash"),
        ),
        memory.judge_free,
    ),
    (
        Subject(
            "pressure",
            "memory pressure",
            "Under memory pressure, processes are killed and DSP calls time out.",
            (*_SHORT, "timeout"),
        ),
        memory.judge_pressure,
    ),
    (
        Subject(
            "group",
            "memory limit",
            "A container or service may be allowed far less than the machine has.",
            _SHORT,
        ),
        memory.judge_group,
    ),
    (
        Subject(
            "heap",
            "DMA heap",
            "Only memory of this heap can be shared with the DSP; it is not counted for "
            "any process.",
            (*_BUFFERS, "access_denied"),
        ),
        memory.judge_heap,
    ),
    (
        Subject(
            "nodes",
            "DSP nodes",
            "FastRPC reaches the DSP through these files; without rights a session cannot open.",
            ("access_denied", "session_limit", "signing", "skel_missing", "driver_firmware"),
        ),
        dsp.judge_nodes,
    ),
    (
        Subject(
            "state",
            "DSP state",
            "A DSP that is down or was restarted serves no session.",
            ("dsp_crash", "driver_firmware", "session_limit", "timeout", "skel_missing"),
        ),
        dsp.judge_state,
    ),
    (
        Subject(
            "lpai",
            "LPAI",
            "LPAI runs models next to the aDSP, and its TCM exists only there.",
            ("tcm_memory_type", "mem_tcm_pool", "mem_tcm_slots"),
        ),
        dsp.judge_lpai,
    ),
    (
        Subject(
            "users",
            "DSP connections",
            "Every connection takes one of the DSP's few sessions, and address space of it.",
            ("session_limit", "mem_leak", "mem_concurrency", "mem_multi_context", "mem_dsp_va"),
        ),
        dsp.judge_users,
    ),
    (
        Subject(
            "transport",
            "FastRPC library",
            "QNN loads it to reach the DSP; an app must name it in its manifest.",
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
            "releases of QNN",
            "Library, system library, stub and skel work together only if they are of one release.",
            ("version_mismatch", "driver_firmware"),
        ),
        libraries.judge_releases,
    ),
    (
        Subject(
            "paths",
            "library paths",
            "The DSP searches these folders for its skel and takes the first one it finds.",
            ("skel_missing", "version_mismatch"),
        ),
        libraries.judge_paths,
    ),
    (
        Subject(
            "soc",
            "SoC",
            "A binary or library for another Hexagon version is refused.",
            ("soc_mismatch", "vtcm_config", "op_unsupported", "mem_vtcm", "mem_graph_limit"),
        ),
        system.judge_chip,
    ),
    (
        Subject(
            "driver",
            "driver and firmware",
            "Limits and faults of the DSP depend on its firmware and on the kernel's driver.",
            ("driver_firmware", "mem_map_layer", "dsp_crash", "version_mismatch", "timeout"),
        ),
        system.judge_driver,
    ),
    (
        Subject(
            "selinux",
            "SELinux",
            "A security policy may deny access to a node that file permissions allow.",
            ("access_denied",),
        ),
        system.judge_selinux,
    ),
    (
        Subject(
            "limits",
            "process limits",
            "Every shared buffer is an open file, and models are mapped into address space.",
            ("mem_buffer_cap", "mem_multi_context", "mem_unknown", "mem_system_ram"),
        ),
        system.judge_limits,
    ),
)


def judge(seen: Survey) -> HostResult:
    """Judge the readings of a machine."""
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
    """Return the report with its checks sorted by the causes in a log.

    Among the checks of one cause problems come first, then unknowns.
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
