"""The machine to check: this machine, a device connected by adb, or an unpacked image."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qnnmem.doctor.host.command import CommandAnswer, ask
from qnnmem.doctor.host.look import CALL_S, TOTAL_S, ShellLook, Unseen
from qnnmem.doctor.host.survey import RELEASES
from qnnmem.errors import Setting, UsageError, Words
from qnnmem.text import plain_or_quoted, quote

LOCAL = "local"
ADB = "adb"
IMAGE = "image:"
_LIST = "List of devices attached"
_MOST = 1 << 16
_SHOWN = 5
_READY = "device"
_NOT_RUNNING = "the image is not running, so this cannot be checked"
_CURES = {
    "unauthorized": "unlock the device and allow USB debugging from this computer",
    "authorizing": "unlock the device and allow USB debugging from this computer",
    "offline": "unplug the device and plug it in again, or run `adb reconnect`",
    "no permissions": "this user has no permission for the USB device; see the udev rules of adb",
}


def is_machine(text: str) -> bool:
    """Return True if a text names a machine: `local`, `adb`, `adb:SERIAL` or `image:FOLDER`."""
    return text in (LOCAL, ADB) or text.startswith((f"{ADB}:", IMAGE))


@dataclass(frozen=True, slots=True)
class ImageLook:
    """Access to the files of an unpacked image, which is not running."""

    root: Path
    until: float

    @property
    def place(self) -> str:
        """Description of the image for use in sentences."""
        return f"the image in {plain_or_quoted(str(self.root))}"

    def read_file(self, path: str) -> str | Unseen:
        """Return the text of a file in the image."""
        return self._inside(path) or self._shell().read_file(self._at(path))

    def list_folder(self, path: str) -> tuple[str, ...] | Unseen:
        """Return the names in a folder of the image."""
        return self._inside(path) or self._shell().list_folder(self._at(path))

    def rights(self, *_paths: str) -> Unseen:
        """Return Unseen, because a file-system image has no device files."""
        return Unseen(_NOT_RUNNING)

    def run(self, *words: str) -> str | Unseen:
        """Return what a command would print, derived from the image's files without running it."""
        if words[0] == "uname":
            return "not running"
        if words[0] == "getprop":
            texts = (self.read_file(f"{top}/build.prop") for top in ("/system", "/vendor", ""))
            pairs = (
                line.partition("=")
                for text in texts
                if not isinstance(text, Unseen)
                for line in text.splitlines()
            )
            return "\n".join(f"[{name}]: [{value}]" for name, _, value in pairs)
        if words[:3] == ("sh", "-c", RELEASES):
            paths = [self._at(path) for path in words[4:] if self._inside(path) is None]
            text = self._shell().run(*words[:4], *paths)
            return text if isinstance(text, Unseen) else text.replace(f"= {self.root}", "= ")
        return Unseen(_NOT_RUNNING)

    def _shell(self) -> ShellLook:
        return ShellLook(self.place, self.until)

    def _at(self, path: str) -> str:
        return f"{self.root}{path}"

    def _inside(self, path: str) -> Unseen | None:
        """Return None if a path, with links followed, is in the image; else why it is not."""
        if path.startswith(("/proc/", "/sys/", "/dev/")):
            return Unseen(_NOT_RUNNING)
        try:
            inside = Path(self._at(path)).resolve().is_relative_to(self.root)
        except (OSError, RuntimeError, ValueError):
            inside = False
        return None if inside else Unseen("a link leads out of the image, so it is not followed")


def find_machine(text: str) -> ShellLook | ImageLook:
    """Return the machine that the text names, and start the time limit for its checks."""
    until = time.monotonic() + TOTAL_S
    if text.startswith(IMAGE):
        folder = Path(text.removeprefix(IMAGE))
        if not text.removeprefix(IMAGE) or not folder.is_dir():
            raise UsageError("is not a folder with an unpacked image", where=folder)
        return ImageLook(folder.resolve(), until)
    if text == LOCAL:
        if not sys.platform.startswith(("linux", "android")):
            raise UsageError("only Linux and Android can be checked", cure=_USE_ADB)
        return ShellLook("this machine", until)
    adb = shutil.which(ADB)
    if adb is None:
        raise UsageError("adb is not installed or not on the PATH", cure=_GET_ADB)
    serial = _chosen(_devices(adb), text.partition(":")[2] if ":" in text else None)
    shown = plain_or_quoted(serial)
    return ShellLook(f"adb device {shown}", until, (adb, "-s", serial, "shell"))


_USE_ADB: Words = ("for a device connected by cable, use ", Setting("host", ADB))
_GET_ADB = "adb is part of Android's platform tools"


def _devices(adb: str) -> dict[str, str]:
    """Return the state of every connected device, by serial number."""
    try:
        answer = ask((adb, "devices"), CALL_S, _MOST)
    except OSError as exc:
        raise UsageError(f"adb cannot be started ({exc.strerror or exc})") from exc
    if answer.code is None:
        raise UsageError(
            f"adb gave no answer in {CALL_S:.0f} seconds", cure="run `adb kill-server`, then retry"
        )
    _, header, rest = answer.text.partition(_LIST)
    if not header:
        said = _first_line(answer)
        raise UsageError(f"adb listed no devices but printed {quote(said)}")
    pairs = (line.partition("\t") for line in rest.splitlines() if not line.startswith("*"))
    return {serial: state.strip() for serial, tab, state in pairs if serial and tab}


def _first_line(answer: CommandAnswer) -> str:
    lines = (answer.errors + answer.text).strip().splitlines()
    return lines[0] if lines else "nothing"


def _chosen(devices: dict[str, str], serial: str | None) -> str:
    if serial is None and len(devices) > 1:
        names = _listed([name for name, state in devices.items() if state == _READY] or devices)
        raise UsageError(
            f"{len(devices)} devices are connected: {names}",
            cure=("name one, e.g. ", Setting("host", f"{ADB}:{_example(devices)}")),
        )
    if not devices:
        raise UsageError(
            "no device is connected to adb",
            cure="connect one with USB debugging enabled; `adb devices` lists it",
        )
    name = next(iter(devices)) if serial is None else serial
    if name not in devices:
        what = f"adb has no device {quote(name)}; it is connected to {_listed(devices)}"
        raise UsageError(what, cure="`adb devices` lists the connected devices")
    if devices[name] != _READY:
        raise _not_ready(name, devices[name])
    return name


def _not_ready(name: str, state: str) -> UsageError:
    known = next((word for word in _CURES if state.startswith(word)), "")
    cure = _CURES.get(known, "start Android on the device and try again")
    return UsageError(
        f"adb reports about {plain_or_quoted(name)}: {known or quote(state)}", cure=cure
    )


def _listed(names: Iterable[str]) -> str:
    every = [plain_or_quoted(name, 40) for name in names]
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _example(devices: dict[str, str]) -> str:
    ready = [name for name, state in devices.items() if state == _READY and name.isprintable()]
    return ready[0] if ready else "SERIAL"
