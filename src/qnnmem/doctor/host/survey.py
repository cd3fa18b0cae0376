"""All readings of a machine, taken once; the checks use only these readings.

Libraries are searched for in folders that environment variables name, and in the folders that
images and SDKs use: Android's vendor partition, Qualcomm Linux, Debian and Ubuntu for boards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qnnmem.doctor.host.look import Look, Rights, Unseen
from qnnmem.errors import UsageError
from qnnmem.machine import group_limits

# Library folders of processes on the application processor.
_HOST_FOLDERS = (
    *("/vendor/lib64", "/system/vendor/lib64", "/odm/lib64", "/system_ext/lib64"),
    *("/data/local/tmp", "/usr/lib", "/usr/lib64", "/usr/lib/aarch64-linux-gnu"),
    *("/usr/lib/x86_64-linux-gnu", "/usr/local/lib"),
)
# Folders that FastRPC searches for the DSP.
_DSP_FOLDERS = (
    *("/vendor/lib/rfsa/adsp", "/vendor/lib64/rfs/dsp", "/odm/lib/rfsa/adsp"),
    *("/vendor/dsp", "/vendor/dsp/cdsp", "/vendor/dsp/adsp", "/dsp", "/dsp/cdsp"),
    *("/usr/lib/rfsa/adsp", "/usr/lib/dsp", "/usr/lib/dsp/cdsp", "/usr/share/fastrpc"),
)
_BOARD_FOLDER = "/usr/share/qcom"  # contains a folder for each board
_BOARD_DEPTH, _BOARD_MOST = 5, 40
_MOST_GROUPS = 20
_MOST_NAMED = 16  # folders in environment variables
DSP_VARIABLES = ("ADSP_LIBRARY_PATH", "DSP_LIBRARY_PATH")
HOST_VARIABLE = "LD_LIBRARY_PATH"
_LIBRARY = re.compile(
    r"lib(?:(?:Qnn|Snpe|SNPE|Genie)[\w.-]*|[a-z]{0,2}dsprpc)\.so(?:\.\d+)*|fastrpc_shell\w*"
)
_NODES = tuple(
    f"/dev/{name}"
    for name in (
        *("fastrpc-cdsp", "fastrpc-cdsp-secure", "fastrpc-cdsp1", "fastrpc-cdsp1-secure"),
        *("fastrpc-adsp", "fastrpc-adsp-secure", "fastrpc-sdsp", "fastrpc-mdsp"),
        *("fastrpc-gdsp0", "fastrpc-gdsp1", "adsprpc-smd", "adsprpc-smd-secure"),
    )
)
_HEAPS = ("/dev/dma_heap/system", "/dev/dma_heap/qcom,system", "/dev/ion")
_FOLDER = re.compile(r"[\w-]{1,60}")
_PROCESSOR = re.compile(r"remoteproc\d{1,3}")
_MOST_PROCESSORS = 12
_DSP = re.compile(r"[acsgp]dsp|slpi")
_OPEN_FILES = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -cE '(fastrpc-|adsprpc-)'"
_BUFFERS = "cat /sys/kernel/dmabuf/buffers/*/size"

# Prints the path of each file, then every release string and FastRPC function in its bytes.
RELEASES = (
    'for f in "$@"; do echo "= $f"; grep -aoE "AISW_VERSION: [0-9.]+|v[12]([.][0-9]{1,3}){2}[.]'
    '[0-9]{6,16}|rpcmem_(alloc|free|to_fd)|remote_handle_open" "$f" 2>/dev/null | head -n 40 '
    "| sort -u; done"
)
_RELEASE = re.compile(r"(?:AISW_VERSION: |v)(\d{1,3}(?:\.\d{1,3}){2}(?:\.\d{6,16})?)\.?")
_FUNCTION = re.compile(r"(rpcmem_\w{4,6}|remote_handle_open)")
_PARTS = re.compile(
    r"libQnn(?:Htp|System|HtpPrepare|HtpV\d{2,3}(?:Stub|Skel))\.so|[a-z]{3,5}dsprpc\.so[.\d]*"
)
_MOST_PARTS = 24

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Processor:
    """Processor that Linux starts: its name, and its state and firmware if they can be read."""

    name: str
    state: str | Unseen
    firmware: str | Unseen


@dataclass(frozen=True, slots=True)
class Survey:
    """All readings of a machine."""

    place: str
    kernel: str | Unseen
    user: str | Unseen
    properties: Mapping[str, str]
    chip_names: Names  # names of the SoC in files and properties
    meminfo: str | Unseen
    pressure: str | Unseen
    groups: str | Unseen
    group_limits: tuple[int, ...]
    heaps: Mapping[str, Rights] | Unseen
    buffers: str | Unseen
    nodes: Mapping[str, Rights] | Unseen
    processors: tuple[Processor, ...] | Unseen
    open_files: str | Unseen
    variables: Mapping[str, str] | Unseen
    host_folders: Mapping[str, Names | Unseen]
    dsp_folders: Mapping[str, Names | Unseen]
    selinux: str | Unseen
    denials: str | Unseen
    limits: str | Unseen
    releases: Mapping[str, Names]  # build ids in the bytes of QNN's libraries, by path
    functions: Mapping[str, Names]  # functions in the bytes of FastRPC's libraries, by path

    @property
    def is_android(self) -> bool:
        """True if the machine runs Android."""
        return "ro.build.fingerprint" in self.properties

    @property
    def libraries(self) -> Names:
        """Names of all QNN and FastRPC libraries that were found."""
        folders = (*self.host_folders.values(), *self.dsp_folders.values())
        found = (name for names in folders if not isinstance(names, Unseen) for name in names)
        return tuple(sorted(set(found)))

    @property
    def dsps(self) -> tuple[Processor, ...]:
        """Processors that are DSPs according to their names; Linux also lists other processors."""
        every = () if isinstance(self.processors, Unseen) else self.processors
        return tuple(one for one in every if _DSP.search(one.name))

    @property
    def has_dsp(self) -> bool:
        """True if the readings show QNN or FastRPC libraries, a DSP, or a Qualcomm SoC."""
        names = " ".join((*self.chip_names, self.properties.get("ro.soc.manufacturer", "")))
        return bool(
            self.libraries
            or (not isinstance(self.nodes, Unseen) and self.nodes)
            or self.dsps
            or re.search(r"qcom|qti\b|qualcomm|snapdragon", names, re.I)
        )


def survey(look: Look) -> Survey:
    """Take all readings of a machine; raise UsageError if it cannot be read at all."""
    kernel, meminfo = look.run("uname", "-srm"), look.read_file("/proc/meminfo")
    if isinstance(kernel, Unseen) and isinstance(meminfo, Unseen):
        raise UsageError(f"{look.place} cannot be read: {kernel.reason}")
    properties = _pairs(look.run("getprop"), r"\[([\w.-]{1,100})\]: \[([^\]]{0,200})")
    environment = look.run("env")
    variables = _pairs(environment, rf"({'|'.join((*DSP_VARIABLES, HOST_VARIABLE))})=(.*)")
    named = _named(variables, DSP_VARIABLES, ";")
    on_host = _libraries(look, (*_named(variables, (HOST_VARIABLE,), ":"), *_HOST_FOLDERS))
    on_dsp = _libraries(look, (*named, *_DSP_FOLDERS, *_board_folders(look)))
    return Survey(
        look.place,
        kernel,
        look.run("id"),
        properties,
        tuple(_chip_names(look, properties)),
        meminfo,
        look.read_file("/proc/pressure/memory"),
        look.read_file("/proc/self/cgroup"),
        tuple(group_limits(lambda path: _few_lines(look.read_file(path.as_posix())))),
        look.rights(*_HEAPS),
        look.run("sh", "-c", _BUFFERS),
        look.rights(*_NODES),
        _processors(look),
        look.run("sh", "-c", _OPEN_FILES),
        environment if isinstance(environment, Unseen) else variables,
        on_host,
        on_dsp,
        look.read_file("/sys/fs/selinux/enforce"),
        look.run("logcat", "-d", "-t", "5000", "-e", "avc: *denied"),
        look.read_file("/proc/self/limits"),
        *_in_bytes(look, {**on_host, **on_dsp}),
    )


def _in_bytes(
    look: Look, folders: Mapping[str, Names | Unseen]
) -> tuple[dict[str, Names], dict[str, Names]]:
    """Return, by path of the library, the build ids and the function names in the libraries."""
    paths = [
        f"{folder}/{name}"
        for folder, names in folders.items()
        if not isinstance(names, Unseen)
        for name in names
        if _PARTS.fullmatch(name)
    ][:_MOST_PARTS]
    builds: dict[str, Names] = {}
    functions: dict[str, Names] = {}
    path = ""
    said = _or_nothing(look.run("sh", "-c", RELEASES, "sh", *paths)) if paths else ""
    for line in said.splitlines():
        if line.startswith("= "):
            path = line.removeprefix("= ")
        for pattern, found in ((_RELEASE, builds), (_FUNCTION, functions)):
            if (match := pattern.fullmatch(line)) and path in paths:
                found[path] = tuple(dict.fromkeys((*found.get(path, ()), match[1])))
    return builds, functions


def _or_nothing(text: str | Unseen) -> str:
    return "" if isinstance(text, Unseen) else text


def _few_lines(text: str | Unseen) -> str:
    """Return only the first lines of a list of control groups: each line costs file reads."""
    return "\n".join(_or_nothing(text).splitlines()[:_MOST_GROUPS])


def _pairs(text: str | Unseen, pattern: str) -> dict[str, str]:
    found = (re.fullmatch(pattern, line.rstrip("]")) for line in _or_nothing(text).splitlines())
    return {pair[1]: pair[2] for pair in found if pair}


def _named(variables: Mapping[str, str], names: Names, separator: str) -> list[str]:
    """Return the folders that environment variables list, split at colons and at `separator`."""
    words = (word for name in names for word in variables.get(name, "").split(separator))
    parts = (part.strip() for word in words for part in word.split(":"))
    return [part.rstrip("/") or part for part in parts if part.startswith("/")][:_MOST_NAMED]


def _libraries(look: Look, folders: tuple[str, ...]) -> dict[str, Names | Unseen]:
    found: dict[str, Names | Unseen] = {}
    for folder in dict.fromkeys(folders):
        names = look.list_folder(folder)
        if not isinstance(names, Unseen):
            names = tuple(name for name in names if _LIBRARY.fullmatch(name))
        found[folder] = names
    return found


def _board_folders(look: Look) -> tuple[str, ...]:
    """Return the folders under `_BOARD_FOLDER` whose path contains `/dsp`."""
    found: list[str] = []
    level = [_BOARD_FOLDER]
    for _ in range(_BOARD_DEPTH):
        inside = []
        for folder in level:
            names = look.list_folder(folder)
            few = () if isinstance(names, Unseen) else names[:_BOARD_MOST]
            inside += [f"{folder}/{name}" for name in few if _FOLDER.fullmatch(name)]
        level = list(dict.fromkeys(inside))[: _BOARD_MOST - len(found)]
        found += level
    return tuple(folder for folder in found if "/dsp" in folder)


def _chip_names(look: Look, properties: Mapping[str, str]) -> Iterator[str]:
    for name in ("ro.soc.model", "ro.vendor.soc.model.part_name", "ro.board.platform"):
        if properties.get(name):
            yield properties[name]
    for path in ("/sys/devices/soc0/machine", "/sys/devices/soc0/family"):
        if text := _or_nothing(look.read_file(path)).strip():
            yield text.splitlines()[0][:80]
    tree = _or_nothing(look.read_file("/proc/device-tree/compatible"))
    yield from (word[:80] for word in tree.split("\0")[:8] if word.startswith("qcom,"))


def _processors(look: Look) -> tuple[Processor, ...] | Unseen:
    top = "/sys/class/remoteproc"
    names = look.list_folder(top)
    if isinstance(names, Unseen):
        return names
    chosen = sorted(filter(_PROCESSOR.fullmatch, names))[:_MOST_PROCESSORS]
    found = []
    for name in chosen:
        called = look.read_file(f"{top}/{name}/name")
        state = look.read_file(f"{top}/{name}/state")
        firmware = look.read_file(f"{top}/{name}/firmware")
        found.append(Processor(_word(called, name), _short(state), _short(firmware)))
    return tuple(found)


def _word(text: str | Unseen, otherwise: str) -> str:
    return otherwise if isinstance(text, Unseen) else text.strip()[:80] or otherwise


def _short(text: str | Unseen) -> str | Unseen:
    return text if isinstance(text, Unseen) else text.strip()[:120]
