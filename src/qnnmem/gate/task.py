"""One file to be checked, and what its entry says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qnnmem.errors import Setting, UsageError
from qnnmem.gate.config import BudgetEntry
from qnnmem.gate.keys import KEYS
from qnnmem.gate.pools import HTP, LPAI, pool_of
from qnnmem.options.option import Options, option_fields
from qnnmem.units import Bytes

Group = TypeVar("Group", bound=Options)
_NO_SETTINGS = ("budgets", "time_limit", "soc")  # limits of the check, not of the model


@dataclass(frozen=True, slots=True)
class BudgetTask:
    """A file of an entry; names are shown as they are in the config's folder."""

    entry: BudgetEntry
    path: Path
    file: str
    folder: Path  # of the config
    place: str = ""  # the file as seen from where the check runs

    def target(self, kind: str) -> str:
        """LPAI or HTP: what the entry says, else what the kind of the file allows."""
        from qnnmem.loader.file_kind import kinds_for

        if kind in ("htp", "epcontext"):
            found = HTP
        elif kind == LPAI:
            found = LPAI
        else:
            found = self.wished(kind)
        said = self.entry.own.get("target", found)
        if said != found:
            raise UsageError(f"it is a binary of {found.upper()}, and target is {said}")
        for key in self.entry.own:
            wanted = KEYS[key][0]
            if wanted not in (None, found):
                what = f"{key} is for {str(wanted).upper()}, and target is {found}"
                can = wanted == LPAI or kind in kinds_for("fit")
                raise UsageError(f'{what}; write target = "{wanted}"' if can else what)
        return found

    def wished(self, kind: str = "onnx") -> str:
        """The target of a model: what is said; HTP where SoCs are named and it can be compiled."""
        said = self.entry.get("target")
        is_htp = kind == "onnx" and self.entry.get("socs") is not None
        return str(said) if said is not None else HTP if is_htp else LPAI

    def budgets(self, target: str) -> Mapping[str, Bytes]:
        """Budgets by pool of the target; common ones where the target has such a pool."""
        found: dict[str, Bytes] = {}
        for name, size in self.entry.common.get("budget", {}).items():
            pool = pool_of(name, target)
            if pool is not None:
                found[pool] = size
        own: dict[str, Bytes] = {}
        for name, size in self.entry.own.get("budget", {}).items():
            pool = pool_of(name, target)
            if pool is None:
                raise UsageError(f"{name} is no pool of {target.upper()}, where it is checked")
            if pool in own:
                raise UsageError(f"{pool} has two budgets; give one")
            own[pool] = size
        return {**found, **own}

    def sizes(self, kind: str) -> dict[str, Any]:
        """What fixes a model, as `load` takes it; common dimensions where the model has them."""
        from qnnmem.loader import dims_in

        dims = self.entry.common.get("dims", {})
        shared = dict(dims_in(self.path, dims.items())) if dims and kind == "onnx" else {}
        values = {name: self._placed(one) for name, one in self.named("values").items()}
        return {
            "dims": {**shared, **self.entry.own.get("dims", {})},
            "shapes": self.named("shapes"),
            "values": values,
        }

    def options(self, group: type[Group], kind: str) -> Group:
        """Return the entry as options of a verb; budgets apart, whose pools may be of the target.

        Common settings hold where a file can take them; what an entry itself says must be taken.
        """
        sizes = self.sizes(kind)
        given: dict[str, Any] = {name: tuple(table.items()) for name, table in sizes.items()}
        for field in option_fields(group):
            if field.name in given or field.key == "budget" or not field.is_shared:
                continue
            is_common = kind != "csv" or field.opt.for_buffers
            common = self.entry.common if is_common or field.key == "time_limit" else {}
            if field.opt.item is not None:
                table = {**common.get(field.key, {}), **self.entry.own.get(field.key, {})}
                given[field.name] = tuple(table.items())
            elif field.key in self.entry.own or field.key in common:
                given[field.name] = self.entry.own.get(field.key, common.get(field.key))
        return group(**given)

    def named(self, key: str) -> dict[str, Any]:
        """A table of names: what is common, and over it what the entry says."""
        return {**self.entry.common.get(key, {}), **self.entry.own.get(key, {})}

    def _placed(self, value: Any) -> Any:
        return self.folder / value if isinstance(value, Path) else value


def settings_of(options: Options) -> tuple[Setting, ...]:
    """Return the options that differ from their defaults, for a command that asks the same."""
    return tuple(
        Setting(field.name, word.partition("=")[2])
        for field in option_fields(type(options))
        if field.name not in _NO_SETTINGS
        for word in field.words(getattr(options, field.name))
    )
