"""Compare the text and JSON of `plan` with the results of the naive simulation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from command_line import exit_code, run, sentence
from judge import naive
from judge.naive import Bodies, Pools, Run, rounded

JUDGED = ("scratch", "persistent", "io", "constants", "tcm")


@dataclass(frozen=True)
class Case:
    """A model and the options of its plan."""

    path: Path
    run: Run
    fixed: tuple[str, ...] = ()  # options that fix sizes and values
    states: Mapping[str, str] = field(default_factory=dict)
    align: int = 64
    io: str = "inside"
    inplace: bool = False
    reorder: bool = False

    @property
    def words(self) -> list[str]:
        """The options for the command line."""
        states = [word for pair in self.states.items() for word in ("--state", "=".join(pair))]
        flags = [f"--{name}" for name in ("inplace", "reorder") if getattr(self, name)]
        return [*self.fixed, *states, "--io", self.io, "--align", str(self.align), *flags]

    def pools(self, bodies: Bodies = Bodies.VIEWS, order: Sequence[str] | None = None) -> Pools:
        """Return the pools that the naive simulation computes."""
        ran = self.run if order is None else naive.in_order(self.run, order)
        options = {"align": self.align, "io": self.io, "states": self.states, "bodies": bodies}
        return naive.pools(ran, **options)  # type: ignore[arg-type]


def planned(case: Case, *words: str) -> tuple[int, Any]:
    """Return the exit code and the JSON of `plan`."""
    done = run("plan", case.path, *case.words, *words, "--json")
    assert done.exception is None, sentence(done)
    return exit_code(done), json.loads(done.stdout)


def judge_plan(case: Case, random: Random) -> Any:
    """Fail if a number, an offset or a verdict of `plan` contradicts the naive simulation."""
    code, plan = planned(case)
    assert (code, plan["exit_code"], plan["fits"]) == (0, 0, True)
    judge_offsets(case, plan)
    judge_numbers(case, plan)
    judge_text(case, plan, random)
    return plan


def judge_offsets(case: Case, plan: Any) -> None:
    """Fail if a byte is lost while the model runs in the planned memory."""
    naive.execute_in(case.run, plan, inplace=case.inplace)
    ends = dict.fromkeys(JUDGED, 0)
    for buffer in plan["buffers"]:
        end = buffer["offset_bytes"] + buffer["size_bytes"]
        ends[buffer["pool"]] = max(ends[buffer["pool"]], end)
    assert plan["scratch_bytes"] == ends["scratch"]
    assert plan["persistent_bytes"] == ends["persistent"]
    assert plan["io_bytes"] == ends["io"]


def judge_numbers(case: Case, plan: Any) -> None:
    """Fail if a pool, the peak or the bound contradicts the simulated run."""
    want = case.pools()
    assert plan["persistent_bytes"] == want.persistent
    assert plan["io_bytes"] == want.io
    assert plan["constant_bytes"] == want.constants
    assert (plan["tcm"]["need_bytes"], plan["tcm"]["buffers"]) == (want.tcm, want.tcm_slots)
    fits = want.tcm <= naive.TCM_BYTES and want.tcm_slots <= naive.TCM_SLOTS
    assert plan["tcm"]["fits"] == fits
    alive = _alive(plan)
    peak = plan["peak"] or {"bytes": 0, "step": -1, "live": []}
    assert peak["bytes"] == max(alive.values(), default=0) <= plan["scratch_bytes"]
    assert sum(one["bytes"] for one in peak["live"]) == peak["bytes"]
    assert peak["bytes"] <= plan["lower_bound_bytes"] <= plan["scratch_bytes"]
    assert plan["optimal"] == (plan["lower_bound_bytes"] == plan["scratch_bytes"])
    if plan["reorder"] is not None:
        assert plan["reorder"]["after_bytes"] <= plan["reorder"]["before_bytes"]
    if case.inplace:
        return  # in-place sharing is the planner's choice; `judge_offsets` has executed the result
    order = plan["ops"] if case.reorder else None
    # The layout of bodies may vary, but never goes below the bytes that are live.
    least, most = (case.pools(how, order).scratch for how in (Bodies.LEAST, Bodies.COPIES))
    assert least <= peak["bytes"] <= most
    if not case.run.has_bodies:
        assert alive.get(peak["step"], 0) == case.pools(order=order).alive[peak["step"] + 1]
    assert not beaten(plan)


def _alive(plan: Any) -> dict[int, int]:
    """Return the bytes of scratch at each step, from the buffers in the plan."""
    found: dict[int, int] = {}
    for buffer in plan["buffers"]:
        if buffer["pool"] == "scratch":
            for at in range(buffer["lower"], buffer["upper"]):
                found[at] = found.get(at, 0) + buffer["size_bytes"]
    return found


def beaten(plan: Any, tries: int = 100) -> int | None:
    """Return a scratch below the claimed minimum, if random placement orders find a layout."""
    buffers = [one for one in plan["buffers"] if one["pool"] == "scratch" and one["size_bytes"]]
    peak = plan["peak"]["bytes"] if plan["peak"] else 0
    if not plan["optimal"] or plan["scratch_bytes"] == peak:
        return None  # no layout is smaller than the live bytes
    random = Random(len(buffers))  # noqa: S311
    for _ in range(tries):
        random.shuffle(buffers)
        placed: list[tuple[int, int, Any]] = []
        for one in buffers:
            start = 0
            for begin, end, other in sorted(placed, key=lambda item: item[0]):
                together = one["lower"] < other["upper"] and other["lower"] < one["upper"]
                if together and begin < start + one["size_bytes"] and start < end:
                    start = end
            placed.append((start, start + one["size_bytes"], one))
        end = max(item[1] for item in placed)
        if end < plan["scratch_bytes"]:
            return end
    return None


def judge_text(case: Case, plan: Any, random: Random) -> None:
    """Run `plan` with each budget within a byte of its pool; check each line and the exit code."""
    need = {
        "scratch": plan["scratch_bytes"],
        "persistent": plan["persistent_bytes"],
        "io": plan["io_bytes"],
        "constants": plan["constant_bytes"],
        "tcm": plan["tcm"]["need_bytes"],
    }
    limits = {pool: max(0, size + random.choice((-1, 0, 0, 1))) for pool, size in need.items()}
    crowded = plan["tcm"]["buffers"] > naive.TCM_SLOTS
    words = [word for pool, size in limits.items() for word in ("--budget", f"{pool}={size}")]
    done = run("plan", case.path, *case.words, *words)
    assert done.exception is None, sentence(done)
    broken = [pool for pool, size in need.items() if size > limits[pool]]
    if broken == ["scratch"] and case.run.has_bodies:
        assert exit_code(done) in (1, 3), (
            done.stdout
        )  # a separate layout of the bodies may need fewer slots
    else:
        assert exit_code(done) == (1 if broken or crowded else 0), done.stdout
    lines = done.stdout.splitlines()
    for pool in JUDGED:
        line = _budget_line(lines, pool)
        assert line.startswith("fits") == (pool not in broken) or (pool == "tcm" and crowded), line
        if pool != "tcm" or not crowded:
            shown = numbers(line)
            assert shown[0] == need[pool], line
            assert limits[pool] in shown, line
            if pool in broken:
                assert shown[1] == need[pool] - limits[pool], line
    stated = next(line for line in lines if line.startswith("scratch "))
    assert numbers(stated)[0] == need["scratch"]
    others = next(line for line in lines if line.startswith("persistent "))
    outside = [] if case.io == "inside" else [need["io"]]
    assert numbers(others) == [need["persistent"], *outside, need["constants"]]


def judge_proof(case: Case, text: str, plan: Any) -> None:
    """Fail if `plan` calls a number minimal and a run in the same order needs less."""
    stated = next(line for line in text.splitlines() if line.startswith("scratch "))
    if "minimal" not in stated or "upper bound" in stated:
        return
    assert plan["scratch_bytes"] <= rounded(case.pools(Bodies.LEAST).scratch, case.align), stated


def numbers(line: str) -> list[int]:
    """Return each number of a line that is not part of a name."""
    return [int(word.replace(",", "")) for word in re.findall(r"(?<![\w.])\d[\d,]*(?![\w.])", line)]


def _budget_line(lines: Sequence[str], pool: str) -> str:
    """Return the single line that judges a pool; several TCM faults share one line."""
    starts = r"[a-z ]*(fit|fits|tell): "
    says = {"tcm": r"(.*\bTCM\b|constants and IO)"}.get(
        pool, rf"(no )?{pool} (takes?|needs?|plan)\b"
    )
    found = [line for line in lines if re.match(starts + says, line)]
    assert len(found) == 1, (pool, lines)
    return found[0]
