"""`qnnmem doctor --host`: fake machines, a scripted adb and this machine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from command_line import exit_code, run, sentence
from patience import patient

from qnnmem.doctor.host import devices, examine, find_machine
from qnnmem.doctor.host import look as looking
from qnnmem.doctor.host.command import CommandAnswer, ask
from qnnmem.doctor.host.judge import CHECKS, with_causes
from qnnmem.doctor.host.look import Rights, ShellLook, Unseen
from qnnmem.doctor.host.survey import RELEASES
from qnnmem.doctor.kb.entry import CAUSES
from qnnmem.errors import UsageError
from qnnmem.report import host as report
from qnnmem.results.host import HostCheck, HostResult, HostVerdict
from qnnmem.results.schema import encode, load_schema

GOOD, PROBLEM, NOT_KNOWN = HostVerdict.GOOD, HostVerdict.PROBLEM, HostVerdict.NOT_KNOWN
ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "examples" / "graph_limit.log"
ABSENT = Unseen("not found", is_absent=True)
MEMINFO = "MemTotal: {total} kB\nMemFree: 1000 kB\nMemAvailable: {free} kB\n"
CALM = "some avg10=0.00 avg60=0.12 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 total=0\n"
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max open files            32768                32768                files\n"
    "Max locked memory         67108864             67108864             bytes\n"
    "Max address space         unlimited            unlimited            bytes\n"
)


@dataclass(frozen=True)
class Machine:
    """A machine made of a dictionary of files, commands and rights."""

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Rights] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    place: str = "a machine"

    def read_file(self, path: str) -> str | Unseen:
        """Return a file of the dictionary."""
        if path in self.hidden:
            return Unseen("permission denied")
        return self.files.get(path, ABSENT)

    def list_folder(self, path: str) -> tuple[str, ...] | Unseen:
        """Return the names below a folder of the dictionary."""
        if path in self.hidden:
            return Unseen("permission denied")
        below = [
            name.removeprefix(f"{path}/") for name in self.files if name.startswith(f"{path}/")
        ]
        return tuple(dict.fromkeys(name.split("/")[0] for name in below)) or ABSENT

    def rights(self, *paths: str) -> Mapping[str, Rights] | Unseen:
        """Return the rights of the given nodes."""
        return {path: self.nodes[path] for path in paths if path in self.nodes}

    def run(self, *words: str) -> str | Unseen:
        """Return a command's output, looked up by all words or by the first word."""
        return self.commands.get(" ".join(words), self.commands.get(words[0], ABSENT))

    def having(self, **files: str) -> Machine:
        """Return a copy with more files; `__` stands for a slash."""
        more = {f"/{name.replace('__', '/')}": text for name, text in files.items()}
        return replace(self, files={**self.files, **more})

    def without(self, word: str) -> Machine:
        """Return a copy without the files whose path holds a word."""
        left = {path: text for path, text in self.files.items() if word not in path}
        return replace(self, files=left)


def plain(total: int = 8 << 20, free: int = 4 << 20) -> dict[str, str]:
    """Return the files of any Linux, with memory in KiB."""
    return {
        "/proc/meminfo": MEMINFO.format(total=total, free=free),
        "/proc/pressure/memory": CALM,
        "/proc/self/limits": LIMITS,
        "/proc/self/cgroup": "0::/a\n",
    }


def dsp(name: str, state: str, number: int = 0) -> dict[str, str]:
    """Return the files of a remote processor."""
    top = f"/sys/class/remoteproc/remoteproc{number}"
    firmware = f"qcom/{name}.mbn\n"
    return {f"{top}/name": name, f"{top}/state": f"{state}\n", f"{top}/firmware": firmware}


OPEN = Rights(True, True, "crw-rw-rw- system system")
SHUT = Rights(False, False, "crw-rw---- root fastrpc")

PHONE = Machine(
    files={
        **plain(12 << 20, 5 << 20),
        **dsp("3000000.remoteproc-adsp", "running"),
        **dsp("32300000.remoteproc-cdsp", "running", 1),
        "/sys/fs/selinux/enforce": "1",
        "/vendor/lib64/libcdsprpc.so": "",
        "/vendor/lib64/libQnnHtp.so": "",
        "/vendor/lib64/libQnnHtpV75Stub.so": "",
        "/vendor/lib/rfsa/adsp/libQnnHtpV75Skel.so": "",
    },
    commands={
        "uname": "Linux 6.1.57-android14 aarch64\n",
        "id": "uid=2000(shell) gid=2000(shell)\n",
        "getprop": "[ro.soc.model]: [SM8650]\n[ro.soc.manufacturer]: [QTI]\n"
        "[ro.board.platform]: [pineapple]\n[ro.build.fingerprint]: [a/b/c:14/X/1:user/keys]\n",
        "env": "HOME=/\n",
        "logcat": "--------- beginning of main\n",
        "sh": "0\n",
    },
    nodes={
        "/dev/fastrpc-cdsp": OPEN,
        "/dev/fastrpc-cdsp-secure": SHUT,
        "/dev/dma_heap/system": OPEN,
    },
    place="adb device 1a2b",
)
BOARD = Machine(
    files={
        **plain(),
        **dsp("adsp", "running"),
        **dsp("cdsp", "running", 1),
        "/proc/device-tree/compatible": "radxa,dragon-q6a\0qcom,qcs6490\0",
        "/usr/lib/libcdsprpc.so": "",
        "/usr/lib/libcdsprpc.so.1": "",
        "/usr/lib/libQnnHtpV68Stub.so": "",
        "/usr/share/qcom/qcs6490/Radxa/Dragon/dsp/cdsp/libQnnHtpV68Skel.so": "",
    },
    commands={
        "uname": "Linux 6.8.0-qcom aarch64\n",
        "id": "uid=1000(me) gid=1000(me)\n",
        "env": "PATH=/bin\n",
        "sh": "0\n",
    },
    nodes={"/dev/fastrpc-cdsp": OPEN, "/dev/dma_heap/system": OPEN},
)
DESK = Machine(files=plain(), commands={"uname": "Linux 6.8.0 x86_64\n", "env": "", "sh": "0\n"})


def checks(machine: Machine) -> dict[str, HostCheck]:
    """Return every check by its id."""
    return {one.id: one for one in examine(machine).checks}


def stands(machine: Machine, name: str) -> HostVerdict:
    """Return the verdict of one check."""
    return checks(machine)[name].verdict


def action(machine: Machine, name: str) -> str:
    """Return the action that a check recommends."""
    return checks(machine)[name].action


@pytest.mark.parametrize("machine", [PHONE, BOARD], ids=["phone", "board"])
def test_a_good_device_has_no_problem(machine: Machine) -> None:
    """A working device has no problem and gives exit code 0."""
    found = examine(machine)
    assert [one.id for one in found.problem_checks] == []
    assert (found.has_dsp, found.exit_code) == (True, 0)
    assert report.verdict(found).startswith("good: no problem on ")
    for name in ("memory", "pressure", "heap", "nodes", "state", "transport", "libraries", "soc"):
        assert stands(machine, name) is GOOD, name


def test_an_ordinary_machine_is_called_that_in_one_line() -> None:
    """A machine without QNN and DSP gets one line and exit code 3."""
    found = examine(DESK)
    assert found.exit_code == 3
    assert report.render_text(found) == (
        "cannot tell whether QNN can run: a machine (Linux 6.8.0 x86_64) has neither a QNN library "
        "nor a DSP\n"
    )
    assert len(report.render_text(found, verbose=True).splitlines()) > len(CHECKS)


def test_processors_of_other_vendors_are_no_dsp() -> None:
    """A remote processor of another vendor does not count as a DSP."""
    other = replace(DESK, files={**DESK.files, **dsp("imx-rproc", "offline")})
    assert examine(other).exit_code == 3


def test_a_phone_without_the_skel_is_told_which_one() -> None:
    """A stub without its skel is a problem; the action names the file to copy."""
    bare = PHONE.without("Skel").having(vendor__lib__rfsa__adsp__libQnnHtpV73Skel_so="")
    assert stands(PHONE.without("Skel"), "libraries") is PROBLEM
    assert stands(bare, "libraries") is PROBLEM
    assert "libQnnHtpV75Skel.so" in action(PHONE.without("Skel"), "libraries")


HTP_LIBRARIES = (
    "/vendor/lib64/libQnnHtp.so",
    "/vendor/lib64/libQnnSystem.so",
    "/vendor/lib64/libQnnHtpV75Stub.so",
    "/vendor/lib/rfsa/adsp/libQnnHtpV75Skel.so",
)


class WithReleases(Machine):
    """A machine whose libraries report the releases in `place`."""

    def run(self, *words: str) -> str | Unseen:
        """Return `place` for the command that reads releases."""
        return self.place if words[:3] == ("sh", "-c", RELEASES) else super().run(*words)


@pytest.mark.parametrize(
    ("odd", "verdict"),
    [(None, GOOD), ("Htp.so", PROBLEM), ("System", PROBLEM), ("Stub", PROBLEM), ("Skel", PROBLEM)],
)
def test_releases_that_do_not_go_together(odd: str | None, verdict: HostVerdict) -> None:
    """One library of another SDK release, whether stub, skel or system library, is a problem."""
    lines = [
        f"= {path}\n{'v2.28.0.2410291818' if odd and odd in path else 'AISW_VERSION: 2.51.0'}"
        for path in HTP_LIBRARIES
    ]
    files = {**PHONE.files, **dict.fromkeys(HTP_LIBRARIES, "")}
    machine = WithReleases(files, PHONE.commands, PHONE.nodes, place="\n".join(lines))
    asked = checks(machine)["releases"]
    assert asked.verdict is verdict
    if verdict is PROBLEM:
        assert "2.28.0" in asked.found
        assert "from one SDK release" in asked.action


@pytest.mark.parametrize(("skel", "verdict"), [("260929181845", GOOD), ("260101000000", NOT_KNOWN)])
def test_builds_of_one_release(skel: str, verdict: HostVerdict) -> None:
    """Another build of the same release is not known to fail."""
    lines = [
        f"= {path}\nAISW_VERSION: 2.51.0\nv2.51.0.{skel if 'Skel' in path else '260929181845'}"
        for path in HTP_LIBRARIES
    ]
    files = {**PHONE.files, **dict.fromkeys(HTP_LIBRARIES, "")}
    machine = WithReleases(files, PHONE.commands, PHONE.nodes, place="\n".join(lines))
    asked = checks(machine)["releases"]
    assert asked.verdict is verdict
    assert ("another build id" in asked.found) is (verdict is NOT_KNOWN)


@pytest.mark.parametrize(
    ("functions", "verdict"),
    [
        (("remote_handle_open", "rpcmem_alloc", "rpcmem_free", "rpcmem_to_fd"), GOOD),
        (("remote_handle_open",), PROBLEM),
        ((), GOOD),  # the library may be unreadable
    ],
)
def test_a_fastrpc_library_without_shared_memory(
    functions: tuple[str, ...], verdict: HostVerdict
) -> None:
    """A FastRPC library without the three rpcmem functions is a problem."""
    lines = ("= /vendor/lib64/libcdsprpc.so", *functions)
    machine = WithReleases(PHONE.files, PHONE.commands, PHONE.nodes, place="\n".join(lines))
    asked = checks(machine)["transport"]
    assert asked.verdict is verdict
    assert ("rpcmem_alloc" in asked.found) is (verdict is PROBLEM)


def test_an_unpacked_image_is_looked_at(tmp_path: Path) -> None:
    """An unpacked image is checked; a link out of it is not followed."""
    for at, release in zip(HTP_LIBRARIES, ("2.51.0", "2.51.0", "2.51.0", "2.28.0"), strict=True):
        place = tmp_path / at.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"\x7fELF\0\xffv" + release.encode() + b".260929181845\0")
    (tmp_path / "vendor" / "build.prop").write_text("ro.soc.model=SM8650\n")
    (tmp_path / "odm").symlink_to("/etc")
    done = run("doctor", "--host", f"image:{tmp_path}", "--json")
    assert exit_code(done) == 1
    found = {one["id"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["releases"]["verdict"] == "problem"
    assert (
        "the stub for v75 is from 2.51.0, but its skel is from 2.28.0" in found["releases"]["found"]
    )
    assert found["soc"]["verdict"] == "good"
    assert found["selinux"]["verdict"] == found["group"]["verdict"] == "not_known"
    assert exit_code(run("doctor", "--host", f"image:{tmp_path}/none")) == 2


def test_a_skel_of_another_version_is_no_pair() -> None:
    """A skel of another Hexagon version is a problem, for known and unknown SoCs."""
    files = {"/vendor/lib/rfsa/adsp/libQnnHtpV73Skel.so": "", **PHONE.without("Skel").files}
    other = replace(PHONE, files=files)
    assert stands(other, "libraries") is PROBLEM
    assert "v73" in checks(other)["libraries"].found
    unknown = replace(other, commands={**other.commands, "getprop": ""})
    assert stands(unknown, "libraries") is PROBLEM


def test_a_stub_for_another_soc_is_no_pair() -> None:
    """A stub for another SoC is a problem; the action names the missing stub."""
    other = PHONE.without("Stub")
    other = replace(other, files={**other.files, "/vendor/lib64/libQnnHtpV69Stub.so": ""})
    assert stands(other, "libraries") is PROBLEM
    assert "libQnnHtpV75Stub.so" in action(other, "libraries")


def test_a_folder_that_hides_its_files_is_no_proof() -> None:
    """If the folder of skels is unreadable, as on phones, a missing skel is not known."""
    hidden = replace(PHONE.without("Skel"), hidden=("/vendor/lib/rfsa/adsp",))
    assert stands(hidden, "libraries") is NOT_KNOWN


def test_a_skel_that_the_dsp_does_not_look_for_is_named() -> None:
    """A skel outside the search path needs ADSP_LIBRARY_PATH, which the action names."""
    astray = PHONE.without("Skel")
    files = {**astray.files, "/data/local/tmp/libQnnHtpV75Skel.so": ""}
    astray = replace(astray, files=files)
    assert stands(astray, "libraries") is NOT_KNOWN
    assert "/data/local/tmp to ADSP_LIBRARY_PATH" in action(astray, "libraries")
    env = {**astray.commands, "env": "ADSP_LIBRARY_PATH=/data/local/tmp;/dsp\n"}
    assert stands(replace(astray, commands=env), "libraries") is GOOD


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ADSP_LIBRARY_PATH=/usr/lib;/usr/lib", GOOD),
        ("ADSP_LIBRARY_PATH=/usr/lib:/usr/lib", PROBLEM),
        ("ADSP_LIBRARY_PATH=/gone", PROBLEM),
        ("LD_LIBRARY_PATH=/usr/lib:/gone/", PROBLEM),
        ("LD_LIBRARY_PATH=/usr/lib/", GOOD),
        ("LD_LIBRARY_PATH=.", GOOD),
        ("OTHER=/gone", GOOD),
    ],
)
def test_folders_that_variables_name(text: str, verdict: HostVerdict) -> None:
    """Folders in library path variables must exist; DSP paths use semicolons."""
    board = replace(BOARD, commands={**BOARD.commands, "env": f"A=b\n{text}\n"})
    assert stands(board, "paths") is verdict


@pytest.mark.parametrize("state", ["offline", "crashed", "suspended"])
def test_a_dsp_that_is_down(state: str) -> None:
    """A cDSP that is not running is a problem; another DSP may be down."""
    down = replace(BOARD, files={**BOARD.files, **dsp("cdsp", state, 1)})
    assert stands(down, "state") is PROBLEM
    assert examine(down).exit_code == 1
    other = replace(BOARD, files={**BOARD.files, **dsp("adsp", state, 0)})
    assert stands(other, "state") is GOOD


@pytest.mark.parametrize(
    ("state", "library", "verdict", "said"),
    [
        ("running", "libQnnLpai.so", GOOD, "the LPAI version is unknown, and TCM needs v6"),
        ("running", "libQnnHtp.so", NOT_KNOWN, "no libQnnLpai.so in the usual folders"),
        ("crashed", "libQnnLpai.so", PROBLEM, "adsp crashed"),
        ("odd", "libQnnLpai.so", NOT_KNOWN, "adsp odd"),
    ],
)
def test_what_lpai_needs(state: str, library: str, verdict: HostVerdict, said: str) -> None:
    """LPAI needs a running aDSP and its library; the LPAI version stays unknown."""
    files = {**BOARD.files, **dsp("adsp", state), f"/usr/lib/{library}": ""}
    found = checks(replace(BOARD, files=files))["lpai"]
    assert found.verdict is verdict
    assert said in found.found
    assert checks(DESK)["lpai"].verdict is NOT_KNOWN
    assert (
        checks(BOARD.without("remoteproc0"))["lpai"].found
        == "Linux manages no aDSP on this machine"
    )


@pytest.mark.parametrize(
    ("firmware", "verdict"),
    [
        ("qcom/sm8650/cdsp.mbn", NOT_KNOWN),
        ("qcom/sm8550/cdsp.mbn", PROBLEM),  # for v73, but the SoC has v75
        ("qcom/board/cdsp.mbn", NOT_KNOWN),
    ],
)
def test_firmware_of_another_soc(firmware: str, verdict: HostVerdict) -> None:
    """Firmware whose path names a SoC with another Hexagon version is a problem."""
    path = "/sys/class/remoteproc/remoteproc1/firmware"
    files = {**PHONE.files, path: f"{firmware}\n"}
    found = checks(replace(PHONE, files=files))["driver"]
    assert found.verdict is verdict
    if verdict is PROBLEM:
        assert "is for SM8550 (Hexagon v73), but the SoC is SM8650" in found.found


def test_a_board_without_rights() -> None:
    """Nodes without access rights are a problem, and their owner is named."""
    shut = replace(BOARD, nodes={"/dev/fastrpc-cdsp": SHUT, "/dev/dma_heap/system": SHUT})
    assert stands(shut, "nodes") is stands(shut, "heap") is PROBLEM
    assert "root fastrpc" in checks(shut)["nodes"].found
    hidden = Rights(False, False)
    blind = replace(PHONE, nodes={"/dev/fastrpc-cdsp": hidden, "/dev/dma_heap/system": hidden})
    assert stands(blind, "nodes") is stands(blind, "heap") is NOT_KNOWN
    half = replace(BOARD, nodes={"/dev/fastrpc-cdsp": OPEN, "/dev/fastrpc-cdsp-secure": SHUT})
    assert stands(half, "nodes") is NOT_KNOWN


def test_a_board_without_nodes() -> None:
    """A board without a node for the cDSP is a problem."""
    assert stands(replace(BOARD, nodes={}), "nodes") is PROBLEM
    adsp = replace(BOARD, nodes={"/dev/fastrpc-adsp": OPEN})
    assert stands(adsp, "nodes") is PROBLEM
    old = replace(PHONE, nodes={"/dev/adsprpc-smd": OPEN, "/dev/ion": OPEN})
    assert stands(old, "nodes") is stands(old, "heap") is GOOD


def test_a_desk_with_the_libraries_has_no_problem() -> None:
    """An x86-64 machine with the QNN libraries has no problem without a DSP."""
    desk = replace(DESK, files={**DESK.files, "/usr/lib/libQnnHtp.so": ""})
    assert examine(desk).exit_code == 0


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (MEMINFO.format(total=8 << 20, free=200 << 10), PROBLEM),
        (MEMINFO.format(total=64 << 20, free=5 << 20), PROBLEM),
        (MEMINFO.format(total=8 << 20, free=2 << 20), GOOD),
        ("MemTotal: 1000 kB\nMemFree: 900 kB\n", PROBLEM),  # total below the minimum
        ("", NOT_KNOWN),
        ("MemTotal: lots\n", NOT_KNOWN),
        ("MemTotal: 10 kB\nMemAvailable: 99 kB\n", NOT_KNOWN),
        ("MemTotal: " + "9" * 5000 + " kB\n", NOT_KNOWN),
        ("\x00\x1b[31m\xff" * 500, NOT_KNOWN),
    ],
)
def test_free_memory(text: str, verdict: HostVerdict) -> None:
    """Free memory must be at least a tenth of the total and 512 MiB."""
    assert stands(replace(BOARD, files={**BOARD.files, "/proc/meminfo": text}), "memory") is verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("some avg10=40.01 avg60=1.00 avg300=0 total=0\n", PROBLEM),
        ("some avg10=3.00 avg60=3.00\nfull avg10=0.00 avg60=6.00\n", PROBLEM),
        ("some avg10=3.00 avg60=3.00\nfull avg10=0.00 avg60=1.00\n", GOOD),
        ("some avg10=nan avg60=inf\n", NOT_KNOWN),
        ("", NOT_KNOWN),
    ],
)
def test_memory_pressure(text: str, verdict: HostVerdict) -> None:
    """Pressure over a tenth of the time for some tasks, or a twentieth for all, is a problem."""
    board = replace(BOARD, files={**BOARD.files, "/proc/pressure/memory": text})
    assert stands(board, "pressure") is verdict


@pytest.mark.parametrize(
    ("limit", "verdict"), [("max", GOOD), (str(256 << 20), PROBLEM), (str(6 << 30), GOOD)]
)
def test_the_limit_of_a_control_group(limit: str, verdict: HostVerdict) -> None:
    """A cgroup limit below the needed memory is a problem."""
    board = replace(BOARD, files={**BOARD.files, "/sys/fs/cgroup/a/memory.max": limit})
    assert stands(board, "group") is verdict


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("32768                32768", "256                  32768", PROBLEM),
        ("Max address space         unlimited", "Max address space         1073741824", PROBLEM),
        ("32768                32768", "unlimited            unlimited", GOOD),
        ("Max open files", "Max nonsense", NOT_KNOWN),
    ],
)
def test_limits_of_a_process(old: str, new: str, verdict: HostVerdict) -> None:
    """Low limits on open files or address space are a problem."""
    text = LIMITS.replace(old, new)
    board = replace(BOARD, files={**BOARD.files, "/proc/self/limits": text})
    assert stands(board, "limits") is verdict


def test_a_refusal_of_selinux_about_the_dsp_counts() -> None:
    """An SELinux denial for an app on a DSP node is a problem; on other paths it is not."""
    line = 'avc: denied {{ ioctl }} for path="{}" scontext=u:r:untrusted_app:s0\n'
    for path, verdict in (("/dev/fastrpc-cdsp", PROBLEM), ("/data/x", GOOD)):
        log = {**PHONE.commands, "logcat": line.format(path)}
        assert stands(replace(PHONE, commands=log), "selinux") is verdict
    daemon = line.format("/dev/fastrpc-cdsp").replace("untrusted_app", "hal_camera_default")
    log = {**PHONE.commands, "logcat": daemon}
    assert stands(replace(PHONE, commands=log), "selinux") is NOT_KNOWN
    assert stands(replace(PHONE, hidden=("/sys/fs/selinux/enforce",)), "selinux") is NOT_KNOWN


def test_a_soc_without_htp_is_a_problem_and_an_unknown_one_is_not() -> None:
    """A SoC without HTP is a problem; an unknown SoC is not."""
    names = ("SM8650", "SM8650-AC", "SM8750P", "qcom,sm8550-mtp", "Qualcomm QCS6490 board")
    for name, verdict in (
        *((name, GOOD) for name in names),
        *(("QCM4290", PROBLEM), ("SM99999", NOT_KNOWN), ("", NOT_KNOWN), ("mt6989", NOT_KNOWN)),
    ):
        told = {**PHONE.commands, "getprop": f"[ro.soc.model]: [{name}]\n[x]: [y]\n"}
        assert stands(replace(PHONE, commands=told), "soc") is verdict


def test_what_cannot_be_read_is_not_known_with_the_reason() -> None:
    """A check whose data is unreadable is `not known`, with the reason."""

    class Blind(Machine):
        def rights(self, *_paths: str) -> Unseen:
            return Unseen("permission denied")

        def run(self, *words: str) -> str | Unseen:
            return "Linux 1 aarch64" if words[0] == "uname" else Unseen("permission denied")

        def read_file(self, _path: str) -> Unseen:
            return Unseen("permission denied")

        def list_folder(self, _path: str) -> Unseen:
            return Unseen("permission denied")

    found = examine(Blind())
    assert not found.problems
    known = [one.id for one in found.checks if one.verdict is not NOT_KNOWN]
    assert known == []
    assert report.verdict(found).endswith(
        "is visible on a machine (Linux 1 aarch64): permission denied"
    )
    assert sum("permission denied" in one.found for one in found.checks) >= 7


def test_a_machine_of_which_nothing_can_be_read_cannot_be_looked_at() -> None:
    """A machine where even the kernel name is unreadable is refused with the reason."""
    with pytest.raises(UsageError, match="a machine cannot be read: not found"):
        examine(Machine())


def test_every_check_concerns_causes_that_exist() -> None:
    """Every check concerns existing causes, has a unique id and states a reason."""
    subjects = [subject for subject, _ in CHECKS]
    assert {cause for subject in subjects for cause in subject.causes} <= CAUSES.keys()
    assert len({subject.id for subject in subjects}) == len(subjects)
    assert all(subject.why.endswith(".") and ". " not in subject.why for subject in subjects)


@pytest.mark.parametrize(
    ("cause", "first"),
    [
        ("skel_missing", {"libraries", "paths", "transport", "nodes", "state"}),
        ("access_denied", {"nodes", "selinux", "heap", "transport"}),
        ("mem_system_ram", {"memory", "pressure", "group", "heap", "limits"}),
        ("session_limit", {"users", "state", "nodes"}),
        ("soc_mismatch", {"soc", "libraries"}),
    ],
)
def test_checks_about_the_cause_come_first(cause: str, first: set[str]) -> None:
    """Checks that concern the cause come first, a problem before the others."""
    found = with_causes(examine(PHONE.without("Skel")), [cause])
    assert {one.id for one in found.checks[: len(first)]} == first
    assert len(found.checks) == len(CHECKS)
    if cause == "skel_missing":
        assert found.checks[0].id == "libraries"
        text = report.render_beside(found)
        assert text.index("QNN libraries  ") < text.index("what to do:")


def hostile() -> HostResult:
    """Return the result for a phone whose every word is an attack on terminals and pages."""
    evil = "\x1b]0;x\x07<script>\u202e" + "A" * 5000
    words = dict.fromkeys(PHONE.commands, evil)
    files = {path: evil for path in PHONE.files if "lib" not in path}
    files[f"/sys/class/remoteproc/{evil}/name"] = evil
    files[f"/usr/share/qcom/{evil}/x"] = evil
    files |= {f"/vendor/lib64/libQnn{evil}.so": "", "/vendor/lib64/libQnnHtpV75Stub.so": ""}
    words["getprop"] = f"[ro.soc.model]: [{evil}]\n[ro.build.fingerprint]: [{evil}]\n"
    words["env"] = f"ADSP_LIBRARY_PATH=/{evil}\nLD_LIBRARY_PATH=/{evil}\n"
    words["logcat"] = f"avc: denied fastrpc {evil}\n"
    owner = Rights(False, False, "c\N{REPLACEMENT CHARACTER}")
    nodes = {"/dev/fastrpc-cdsp": owner, "/dev/dma_heap/system": owner}
    return examine(replace(PHONE, files=files, commands=words, nodes=nodes))


def test_what_a_device_says_cannot_hurt() -> None:
    """Control characters and endless lines of a device do not reach any report."""
    found = with_causes(hostile(), ["skel_missing"])
    for text in (
        report.render_text(found, verbose=True),
        report.render_beside(found, verbose=True),
    ):
        assert all(line.isprintable() for line in text.splitlines())
        assert max(map(len, text.splitlines())) < 700
    values = json.loads(encode(found))
    valid(values)
    assert all(one["found"].isprintable() for one in values["checks"])
    assert len(encode(found)) < 20_000


PIECES = (
    *("9" * 5000, "\0", "\x1b[31m", "=", "[", "]", ": ", "kB", "-1", "nan", "\u0663", "\n", "max"),
    *("running", "avg10=", ";", ":", "/", "../", "'", "%s", "{}", " " * 500, "1e999", "unlimited"),
)


def damaged(random: Random, text: str) -> str:
    """Return a text with some pieces replaced at random, or unchanged."""
    letters = list(text)
    for _ in range(random.choice((0, 0, 1, 3, 6))):
        at = random.randint(0, len(letters))
        letters[at : at + random.randint(0, 9)] = [random.choice(PIECES)]
    return "".join(letters)


@pytest.mark.parametrize("machine", [PHONE, BOARD, DESK], ids=["phone", "board", "desk"])
def test_no_answer_of_a_device_breaks_a_check(machine: Machine) -> None:
    """Random damage to files and commands gives a valid, printable report or one sentence."""
    for seed in range(60):
        random = Random(seed)  # noqa: S311 - reproducible, not secret
        files = {path: damaged(random, text) for path, text in machine.files.items()}
        files["/sys/fs/cgroup/a/memory.max"] = damaged(random, "1000")
        said = {name: damaged(random, text) for name, text in machine.commands.items()}
        try:
            found = with_causes(examine(replace(machine, files=files, commands=said)), CAUSES)
        except UsageError:
            continue
        assert all(map(str.isprintable, report.render_beside(found).splitlines())), seed
        assert all(map(str.isprintable, report.render_text(found).splitlines())), seed
        valid(json.loads(encode(found)))


def valid(values: dict[str, Any]) -> None:
    """Assert that the values follow the schema."""
    jsonschema.Draft202012Validator(load_schema("qnnmem.host/1")).validate(values)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for busy machines; tests of the limits set their own."""
    monkeypatch.setattr(looking, "CALL_S", 600.0)
    monkeypatch.setattr(devices, "CALL_S", 600.0)
    monkeypatch.setattr(devices, "TOTAL_S", 600.0)


# Commands and adb


def test_a_command_that_hangs_is_ended() -> None:
    """A command that exceeds its time limit is ended with its child processes."""
    begun = time.monotonic()
    answer = ask(("sh", "-c", "echo a; sleep 600 & sleep 600"), patient(0.3), 100)
    assert (answer.code, answer.text) == (None, "a\n")
    assert time.monotonic() - begun < 300


def test_a_command_without_end_is_cut() -> None:
    """Output beyond the limit is cut; error output does not block the command."""
    answer = ask(("sh", "-c", "while :; do echo aaaaaaa; done"), 300, 1000)
    assert (answer.code, len(answer.text)) == (0, 1000)
    loud = ask(("sh", "-c", "head -c 300000 /dev/zero >&2; echo a"), 300, 1000)
    assert (loud.code, loud.text, len(loud.errors)) == (0, "a\n", 4096)


def test_a_server_that_holds_the_pipe_is_not_waited_for() -> None:
    """A background server that holds the pipe open, like adb's, does not delay the answer."""
    begun = time.monotonic()
    answer = ask(("sh", "-c", "sleep 600 & echo $!"), 300, 1000)
    assert answer.code == 0
    assert time.monotonic() - begun < 300
    # The reader that waits for the server does not take the output of later commands.
    later = {ask(("sh", "-c", "echo no >&2; exit 1"), 300, 1000) for _ in range(20)}
    os.kill(int(answer.text), signal.SIGKILL)
    assert later == {CommandAnswer(1, "", "no\n")}


def test_this_machine_can_be_looked_at() -> None:
    """On this machine, files, folders, rights and commands can be read."""
    here = find_machine("local")
    assert here.read_file("/proc/version") != ABSENT
    assert here.read_file("/gone/gone") == ABSENT
    assert here.list_folder("/gone") == ABSENT
    assert "meminfo" in here.list_folder("/proc")  # type: ignore[operator]
    rights = here.rights("/dev/null", "/dev/gone")
    assert not isinstance(rights, Unseen)
    assert list(rights) == ["/dev/null"]
    assert rights["/dev/null"].readable
    assert "root" in rights["/dev/null"].owner or os.getuid() != 0
    assert here.run("no-such-command-here") == Unseen(
        "there is no command no-such-command-here", is_absent=True
    )
    valid(json.loads(encode(examine(here))))


def test_after_its_time_a_look_sees_nothing() -> None:
    """After the total time limit, every read returns a reason at once."""
    late = ShellLook("x", time.monotonic() - 1)
    assert late.read_file("/proc/version") == Unseen("the checks stopped after 30 seconds")


def adb(folder: Path, monkeypatch: pytest.MonkeyPatch, devices_: str, shell: str = "") -> Path:
    """Put a fake `adb` on the PATH, with scripts for `adb devices` and for its shell."""
    (folder / "bin").mkdir(exist_ok=True)
    script = folder / "bin" / "adb"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {folder}/calls\n'
        f'if [ "$1" = devices ]; then\n{textwrap.dedent(devices_)}\nexit\nfi\n'
        f"serial=$2; shift 3\n{shell or BY_A_SHELL}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return script


BY_A_SHELL = 'exec sh -c "$*"'  # as the real adb does: words are joined and read by a shell
ONE = "printf 'List of devices attached\\n1a2b\\tdevice\\n\\n'"


def test_a_device_is_read_through_adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments reach the device's shell unchanged, and answers come from the device."""
    adb(tmp_path, monkeypatch, ONE)
    device = find_machine("adb")
    assert device.place == "adb device 1a2b"
    assert device.run("echo", "a  b", "$HOME;'\"`ls`") == "a  b $HOME;'\"`ls`\n"
    (tmp_path / "a file").write_text("text")
    assert device.read_file(f"{tmp_path}/a file") == "text"
    assert device.list_folder(f"{tmp_path}/gone") == ABSENT
    done = run("doctor", "--host", "adb:1a2b", "--json")
    valid(json.loads(done.stdout))
    assert "-s 1a2b shell" in (tmp_path / "calls").read_text()


def test_a_whole_device_behind_adb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole device behind adb gets good verdicts, and a removed skel is a problem."""
    for path, text in {**PHONE.files, "/dev/fastrpc-cdsp": "", "/dev/dma_heap/system": ""}.items():
        file = tmp_path / "root" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "getprop").write_text(PHONE.commands["getprop"])
    root = tmp_path / "root"
    shell = (
        f'case "$*" in getprop) cat {tmp_path}/getprop;; uname*) echo Linux 6.1.57 aarch64;;\n'
        f'*) sh -c "$(printf %s "$*" | sed "s# /# {root}/#g")" 2>&1 | sed "s#{root}##g";; esac'
    )
    adb(tmp_path, monkeypatch, ONE, shell)
    done = run("doctor", "--host", "adb", "--json")
    stood = {one["id"]: one["verdict"] for one in json.loads(done.stdout)["checks"]}
    good = ("memory", "pressure", "heap", "nodes", "state", "transport", "libraries", "soc")
    assert {name: stood[name] for name in good} == dict.fromkeys(good, "good")
    (root / "vendor/lib/rfsa/adsp/libQnnHtpV75Skel.so").rename(root / "gone")
    done = run("doctor", "--host", "adb")
    assert exit_code(done) == 1
    assert "copy libQnnHtpV75Skel.so" in done.stdout


def test_an_old_adb_has_one_stream_and_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an old adb, error output is not read as a file, and line ends are normalised."""
    adb(tmp_path, monkeypatch, ONE, 'sh -c "$*" 2>&1 | sed "s/$/\r/"; exit 0')
    device = find_machine("adb")
    assert device.read_file("/gone/gone") == ABSENT
    assert device.run("echo", "a") == "a\n"


@pytest.mark.parametrize(
    ("devices_", "host", "says"),
    [
        ("printf 'List of devices attached\\n\\n'", "adb", "no device is connected to adb"),
        (
            "printf 'List of devices attached\\n1a2b\\tunauthorized\\n'",
            "adb",
            "adb reports about 1a2b: unauthorized; unlock the device and allow USB debugging",
        ),
        (
            "printf 'List of devices attached\\n1a2b\\toffline\\n'",
            "adb:1a2b",
            "adb reports about 1a2b: offline; unplug the device",
        ),
        (
            "printf 'List of devices attached\\n1a2b\\tno permissions (user in plugdev?); see\\n'",
            "adb",
            "adb reports about 1a2b: no permissions; this user",
        ),
        (
            "printf 'List of devices attached\\n1a2b\\tsideload\\n'",
            "adb",
            "adb reports about 1a2b: 'sideload'; start Android",
        ),
        (
            "printf 'List of devices attached\\n1a2b\\tdevice\\n3c4d:5555\\tdevice\\n'",
            "adb",
            "2 devices are connected: 1a2b, 3c4d:5555; name one, e.g. --host adb:1a2b",
        ),
        (ONE, "adb:zz", "adb has no device 'zz'; it is connected to 1a2b"),
        (ONE, "adb:", "adb has no device ''; it is connected to 1a2b"),
        ("echo 'what?'; exit 1", "adb", "adb listed no devices but printed 'what?'"),
        ("printf '\\033[31m\\000\\377\\n'", "adb", "adb listed no devices but printed '\\x1b"),
        ("exit 1", "adb", "adb listed no devices but printed 'nothing'"),
        ("sleep 60", "adb", "adb gave no answer in 0 seconds; run `adb kill-server`"),
        (
            "i=0; echo List of devices attached; while [ $i -lt 900 ]; do i=$((i+1)); "
            "printf 'serial%04d\\tdevice\\n' $i; done",
            "adb",
            "900 devices are connected: serial0001, serial0002, serial0003, serial0004, "
            "serial0005 and 895 more; name one",
        ),
    ],
)
def test_a_device_that_cannot_be_looked_at(
    devices_: str, host: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unusable device gives exit code 2 and an action, or beside a log only a note."""
    adb(tmp_path, monkeypatch, devices_)
    if "sleep" in devices_:
        monkeypatch.setattr(devices, "CALL_S", 0.3)
    done = run("doctor", "--host", host)
    assert exit_code(done) == 2
    assert says in sentence(done)
    assert sentence(done).isprintable()
    beside = run("doctor", LOG, "--host", host)
    assert exit_code(beside) == 1
    assert f"note: the machine was not checked: {says}" in beside.stdout


def test_a_server_that_starts_is_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start messages of the adb server are not taken for devices."""
    started = "echo '* daemon not running; starting now at tcp:5037'; echo '* daemon started'; "
    adb(tmp_path, monkeypatch, started + ONE)
    assert find_machine("adb").place == "adb device 1a2b"


def test_no_adb_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without adb, or with a broken adb, the refusal says what to install or what failed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("doctor", "--host", "adb")
    assert exit_code(done) == 2
    assert sentence(done).startswith("adb is not installed or not on the PATH; adb is part of")
    (tmp_path / "adb").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "adb").chmod(0o755)
    assert sentence(run("doctor", "--host", "adb")).startswith("adb cannot be started (")


@pytest.mark.parametrize(
    "shell",
    ["echo 'error: device 1a2b not found' >&2; exit 1", "echo 'error: closed' >&2; exit 255"],
)
def test_a_device_that_is_gone_meanwhile(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that disappears is reported as not answering, not as missing files."""
    adb(tmp_path, monkeypatch, ONE, shell)
    done = run("doctor", "--host", "adb")
    assert exit_code(done) == 2
    assert "adb device 1a2b cannot be read: the device does not answer" in sentence(done)


def test_a_device_that_hangs_ends_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of a hanging device end at the time limits per call and in total."""
    monkeypatch.setattr(looking, "CALL_S", patient(0.2))
    monkeypatch.setattr(devices, "TOTAL_S", 3.0 * patient(0.2))
    adb(tmp_path, monkeypatch, ONE, 'case "$*" in uname*) echo Linux 1 x;; *) sleep 600;; esac')
    begun = time.monotonic()
    found = examine(find_machine("adb"))
    assert time.monotonic() - begun < 300
    assert len((tmp_path / "calls").read_text().splitlines()) < 12
    assert not found.problems


@pytest.mark.parametrize(
    "shell",
    [
        "head -c 3000000 /dev/urandom",
        "yes | head -c 3000000",
        "yes = rw /dev/ion | head -99",
        "echo '= '",
    ],
)
def test_a_device_that_speaks_nonsense(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nonsense from a device gives a printable report of limited length."""
    monkeypatch.setattr(devices, "TOTAL_S", 3.0)
    adb(tmp_path, monkeypatch, ONE, shell)
    done = run("doctor", "--host", "adb", "-v")
    assert exit_code(done) in (0, 1, 2, 3)
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert len(done.stdout) < 20_000


# The command line


def test_alone_it_shows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a log, `--host` prints the verdict, a row per check, and actions with reasons."""
    monkeypatch.setattr(devices, "find_machine", lambda _text: PHONE.without("Skel"))
    monkeypatch.setattr("qnnmem.doctor.host.find_machine", lambda _text: PHONE.without("Skel"))
    done = run("doctor", "--host")
    assert exit_code(done) == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "1 problem on adb device 1a2b (Linux 6.1.57-android14 aarch64, SM8650)"
    )
    assert len([line for line in lines if "  good  " in line or "  problem  " in line]) > 8
    assert (
        "     why: A stub works only with the skel of the same Hexagon version and release."
        in lines
    )


def test_beside_a_log_both_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a log, the diagnosis comes first and sets the exit code; the JSON has key `host`."""
    monkeypatch.setattr("qnnmem.doctor.host.find_machine", lambda _text: PHONE)
    done = run("doctor", LOG, "--host")
    assert exit_code(done) == 1
    assert done.stdout.startswith("graph stage: out of memory")
    assert "\nchecks that concern mem_graph_limit:\n  SoC  good " in done.stdout
    values = json.loads(run("doctor", LOG, "--host", "--json").stdout)
    jsonschema.Draft202012Validator(load_schema("qnnmem.doctor/1")).validate(values)
    valid(values["host"])
    assert values["host"]["checks"][0]["id"] == "soc"
    assert values["host"]["causes"] == ["mem_graph_limit"]
    grouped = json.loads(run("doctor", LOG, "--host", "--json", "--group-by", "cause").stdout)
    assert grouped["host"] == values["host"]


def test_memory_is_checked_on_an_ordinary_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory cause is checked on a machine without a DSP, too."""
    desk = replace(DESK, files=plain(8 << 20, 1 << 10))
    monkeypatch.setattr("qnnmem.doctor.host.find_machine", lambda _text: desk)
    text = report.render_beside(with_causes(examine(desk), ["mem_system_ram"]))
    assert "available memory  problem " in text
    assert "DSP nodes" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--host", "abd"],
            "--host cannot be 'abd'; it must be local, adb, adb:SERIAL or image:FOLDER, and no log",
        ),
        (["--host", "x\0y"], "--host cannot be 'x\\x00y'; it must be local"),
        ([LOG, "--host", "--follow"], "--follow and --host cannot be combined"),
        ([LOG, "--host", "--format", "sarif"], "--host supports only text and json, not sarif"),
        (["--host", "--format", "markdown"], "--host supports only text and json, not markdown"),
        (["--host", "--soc", "SM8650"], "PATH is missing"),
        (["--host", "--jobs", "2"], "PATH is missing"),
        ([], "PATH is missing"),
    ],
)
def test_what_does_not_go_together(words: list[str | Path], says: str) -> None:
    """Invalid combinations of options give exit code 2 and one sentence."""
    done = run("doctor", *words)
    assert exit_code(done) == 2
    assert says in sentence(done)


@pytest.mark.parametrize(("typed", "offered"), [("", "local adb"), ("a", "adb"), ("x", "")])
def test_machines_are_completed(typed: str, offered: str) -> None:
    """Completion of --host offers `local` and `adb`, but no serial numbers."""
    names = {"COMP_WORDS": f"qnnmem doctor --host {typed}", "COMP_CWORD": "3"}
    surroundings = {**os.environ, **names, "_QNNMEM_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "qnnmem"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"plain,{word}" for word in offered.split()]


def test_a_log_behind_the_option_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--host a.log` checks this machine and reads that log."""
    monkeypatch.setattr("qnnmem.doctor.host.find_machine", lambda _text: PHONE)
    assert run("doctor", "--host", LOG).stdout == run("doctor", LOG, "--host", "local").stdout


def test_a_result_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o` writes the result, prints the verdict on standard error and keeps existing files."""
    monkeypatch.setattr("qnnmem.doctor.host.find_machine", lambda _text: PHONE)
    path = tmp_path / "host.json"
    done = run("doctor", "--host", "--json", "-o", path)
    assert "good: no problem on adb device 1a2b" in done.stderr
    valid(json.loads(path.read_text("utf-8")))
    assert exit_code(run("doctor", "--host", "-o", path)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="it is this machine that is looked at")
def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another operating system than Linux, `--host` suggests adb."""
    monkeypatch.setattr(sys, "platform", "darwin")
    done = run("doctor", "--host")
    assert exit_code(done) == 2
    assert sentence(done).endswith("for a device connected by cable, use --host adb")
