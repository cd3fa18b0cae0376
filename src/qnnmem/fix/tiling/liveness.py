"""Bytes alive over time, for many short trials: numbers in the place of names, nothing checked.

The rules are those of `qnnmem.ir.lifetime`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from qnnmem.ir import Effect


class Liveness:
    """Buffers and the steps that use them; None stands for what is not in scratch."""

    def __init__(self, *, inplace: bool) -> None:
        self._inplace = inplace
        self._numbers: dict[Hashable, int] = {}
        self._sizes: list[int] = []
        self._born: list[int] = []
        self._last: list[int] = []
        self._joined: list[tuple[Effect, list[int], int, int]] = []
        self._steps = 0

    def number(self, key: Hashable, size: int) -> int:
        """The buffer of that name; of that size, if it is new."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._sizes)
            self._sizes.append(size)
            self._born.append(-1)
            self._last.append(-1)
        return found

    def rename(self, old: Hashable, new: Hashable) -> None:
        """Give a buffer a second name."""
        self._numbers[new] = self._numbers[old]

    def run(
        self,
        inputs: Iterable[int | None],
        outputs: Iterable[int | None],
        effect: Effect = Effect.COMPUTE,
    ) -> None:
        """One step."""
        step = self._steps
        self._steps += 1
        read = [one for one in inputs if one is not None]
        made = [one for one in outputs if one is not None]
        for one in read:
            self._last[one] = step
        for one in made:
            self._born[one] = self._last[one] = step
        if made and (effect is Effect.VIEW or (self._inplace and effect is Effect.ELEMENTWISE)):
            self._joined.append((effect, read, made[0], step))

    def keep(self, one: int | None) -> None:
        """A buffer outlives all steps."""
        if one is not None:
            self._last[one] = self._steps

    def peak(self) -> int:
        """Most bytes alive at once."""
        root = list(range(len(self._sizes)))
        size, last = list(self._sizes), list(self._last)

        def find(one: int) -> int:
            while root[one] != one:
                root[one] = root[root[one]]
                one = root[one]
            return one

        for effect, read, made, step in self._joined:
            own = find(made)
            for one in read:
                group = find(one)
                alike = effect is Effect.VIEW or (
                    last[group] == step
                    and self._born[group] >= 0
                    and self._sizes[one] == size[group] == size[own]
                )
                if group != own and alike:
                    root[own] = group
                    last[group] = max(last[group], last[own])
                    size[group] = max(size[group], size[own])
                    break
                if effect is Effect.VIEW:
                    break
        changes = [0] * (self._steps + 3)
        for one in range(len(size)):
            if root[one] == one:
                changes[self._born[one] + 1] += size[one]
                changes[last[one] + 2] -= size[one]
        alive = most = 0
        for change in changes:
            alive += change
            most = max(most, alive)
        return most
