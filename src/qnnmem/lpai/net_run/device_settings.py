"""What the device of a run is told, as values that cross a pipe: JSON, since pickles run code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qnnmem.lpai.config.read import (
    ContextSettings,
    ExecuteSettings,
    GraphSettings,
    LpaiConfig,
    PrepareSettings,
    RunConfig,
)
from qnnmem.lpai.profiles import Profile, profile
from qnnmem.qnn.enums import MemRegisterType


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """All that a device is told; nothing in it refers to the working directory."""

    binary: Path
    size: int
    platform: Profile  # one that `profile` makes
    config: RunConfig | None = None
    mem_type: str = "ddr"
    shared: MemRegisterType | None = None
    use_mmap: bool = False
    sanitize: bool = True

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        made = self.platform
        return {
            "binary": str(self.binary),
            "size": self.size,
            "platform": [
                made.mode.value,
                made.hw_version.word,
                made.alignment,
                made.lenient_scratch,
            ],
            "config": None if self.config is None else _plain(asdict(self.config)),
            "mem_type": self.mem_type,
            "shared": None if self.shared is None else self.shared.name,
            "use_mmap": self.use_mmap,
            "sanitize": self.sanitize,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DeviceSettings:
        """Settings from what `to_json` gave."""
        shared, config = values["shared"], values["config"]
        return cls(
            Path(values["binary"]),
            values["size"],
            profile(*values["platform"]),
            None if config is None else _config(config),
            values["mem_type"],
            None if shared is None else MemRegisterType[shared],
            values["use_mmap"],
            values["sanitize"],
        )


def _plain(value: Any) -> Any:
    """Values with paths as text."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return str(value) if isinstance(value, Path) else value


def _config(values: Mapping[str, Any]) -> RunConfig:
    lpai, context = values["lpai"], values["context"]
    enabled = context["enable_graphs"]
    return RunConfig(
        LpaiConfig(
            **lpai
            | {
                "prepare": PrepareSettings(**lpai["prepare"]),
                "execute": ExecuteSettings(**lpai["execute"]),
                "file": _path(lpai["file"]),
            }
        ),
        ContextSettings(**context | {"enable_graphs": None if enabled is None else tuple(enabled)}),
        tuple(GraphSettings(**entry) for entry in values["graphs"]),
        values["shared_library"],
        _path(values["file"]),
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
