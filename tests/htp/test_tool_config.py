"""Config files of the generator for HTP: their settings, and each refusal in one sentence."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_files import OUTSIDE, naming_below, naming_outside

from qnnmem.errors import CannotTell, LoadError, QnnMemError
from qnnmem.htp.tool_config import GraphSection, HtpToolConfig, htp_target, read_htp_config


def pair(folder: Path, backend: Any, tool: dict[str, Any] | None = None) -> Path:
    """Write a tool file and the backend file beside it."""
    (folder / "htp.conf").write_text(json.dumps(backend), "utf-8")
    named = {"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": "htp.conf"}
    path = folder / "tool.json"
    path.write_text(json.dumps({"backend_extensions": named} | (tool or {})), "utf-8")
    return path


def refusal(path: Path) -> str:
    """Return the sentence that refuses a file."""
    with pytest.raises(LoadError) as caught:
        read_htp_config(path)
    return str(caught.value)


def test_settings_reach_the_graph_they_name(tmp_path: Path) -> None:
    """SoC, VTCM and level come from the two files; unlisted graphs keep the defaults."""
    graphs = [{"graph_names": ["encoder"], "vtcm_mb": 2, "O": 3.0}]
    config = read_htp_config(pair(tmp_path, {"graphs": graphs, "devices": [{"soc_model": 57}]}))
    wanted = htp_target(config, "encoder")
    assert (wanted.soc.name, wanted.vtcm_mb, wanted.opt_level) == ("SM8650", 2, 3)
    assert wanted.notes == ()
    other = htp_target(config, "decoder")
    assert (other.vtcm_mb, other.opt_level) == (None, None)
    assert "graphs has sections only for 'encoder', so none applies to 'decoder'" in other.notes[0]


@pytest.mark.parametrize(
    ("device", "soc", "vtcm", "words"),
    [
        ({"soc_id": 69, "dsp_arch": "v79"}, "SM8750", None, ""),
        (
            {"soc_model": 57, "dsp_arch": "v73"},
            "SM8650",
            None,
            ("v73 is ignored: it differs from that of SM8650"),
        ),
        ({"dsp_arch": "v73"}, "SM8550", 4, "only dsp_arch v73"),
        ({}, "SM8350", None, "no SoC is set"),
    ],
)
def test_the_soc_is_the_librarys_choice(
    tmp_path: Path, device: dict[str, Any], soc: str, vtcm: int | None, words: str
) -> None:
    """An SoC id decides; a bare architecture stands for one SoC, and contradictions are noted."""
    wanted = htp_target(read_htp_config(pair(tmp_path, {"devices": [device]})), "g")
    assert (wanted.soc.name, wanted.vtcm_mb) == (soc, vtcm)
    assert words in " ".join(wanted.notes)


def test_whole_numbers_may_have_a_point(tmp_path: Path) -> None:
    """A whole number may be written with a decimal point: 57.0 is the SoC 57."""
    graphs = [{"graph_names": ["g"], "vtcm_mb": 2.0}]
    config = read_htp_config(pair(tmp_path, {"graphs": graphs, "devices": [{"soc_model": 57.0}]}))
    wanted = htp_target(config, "g")
    assert (wanted.soc.name, repr(wanted.vtcm_mb)) == ("SM8650", "2")


def test_all_vtcm_is_a_number() -> None:
    """VTCM 0 means all VTCM of the SoC."""
    config = HtpToolConfig(soc_id=57, graphs=(GraphSection(("g",), vtcm_mb=0),))
    assert htp_target(config, "g").vtcm_mb == 8


def test_a_soc_without_htp_is_said() -> None:
    """The id of an SoC without HTP raises CannotTell."""
    with pytest.raises(CannotTell, match="not a target of the HTP"):
        htp_target(HtpToolConfig(soc_id=12), "g")


def test_keys_for_running_are_named(tmp_path: Path) -> None:
    """Each ignored key gets a note, except keys that are switched off."""
    backend = {
        "devices": [{"soc_model": 57, "pd_session": "unsigned", "cores": [{"perf_profile": "x"}]}],
        "graphs": [{"graph_names": ["g"], "hvx_threads": 0, "dlbc": 0}],
        "context": {"weight_sharing_enabled": True},
        "memory": {"mem_type": "shared_buffer"},
    }
    config = read_htp_config(pair(tmp_path, backend, {"graph_configs": [{"graph_name": "g"}]}))
    said = " ".join(config.notes)
    for words in ("pd_session", "cores", "weight_sharing", "memory", "graph_configs"):
        assert words in said
    assert "hvx_threads" not in said


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"graphs": [{"graph_names": ["g"], "dlbc": 1}]}, "graphs.dlbc 1 cannot be passed"),
        ({"graphs": [{"graph_names": ["g"], "hvx_threads": 4}]}, "graphs.hvx_threads 4"),
        ({"graphs": [{"vtcm_mbs": 4}]}, "unknown key 'vtcm_mbs'; did you mean 'vtcm_mb'"),
        ({"graphs": [{"vtcm_mb": -1}]}, "vtcm_mb must be a whole number from 0 to 64, not -1"),
        ({"graphs": [{"vtcm_mb": "4"}]}, "vtcm_mb must be a whole number"),
        ({"graphs": [{"vtcm_mb": True}]}, "vtcm_mb must be a whole number"),
        ({"graphs": [{"O": 2.5}]}, "O must be a whole number from 1 to 3"),
        ({"graphs": [{"O": 1e400}]}, "O must be a whole number from 1 to 3"),
        *(
            ({section: [{key: value}]}, f"{section}[].{key} must be a whole number from")
            for section, key in (("graphs", "vtcm_mb"), ("graphs", "O"), ("devices", "soc_model"))
            for value in (int("9" * 400), -int("9" * 400), 1e400, -1e400, float("nan"), True, 1.5)
        ),
        ({"devices": [{"soc_id": int("9" * 400)}]}, "devices[].soc_id must be a whole number from"),
        ({"devices": [{"dsp_arch": "v0073" + "0" * 9999}]}, "is not supported; choose one of v68"),
        ({"devices": [{"dsp_arch": int("9" * 400)}]}, "is not supported; choose one of v68"),
        ({"devices": [{"dsp_arch": [73]}]}, "is not supported; choose one of v68"),
        ({"graphs": [{"graph_names": "g"}]}, "not a list of names"),
        ({"graphs": [7]}, "an entry that is not an object"),
        ({"graphs": 7}, "an entry that is not an object"),
        ({"devices": [{"dsp_arch": "v99"}]}, "dsp_arch 'v99' is not supported; choose one of v68"),
        ({"devices": [{"dsp_arch": "v" + "9" * 9999}]}, "is not supported; choose one of v68"),
        ({"devices": [{"soc_model": "SM8650"}]}, "soc_model must be a whole number"),
        ({"context": {"extended_udma": True}}, "context.extended_udma"),
        ({"device": []}, "unknown key 'device'; did you mean 'devices'"),
        ([], "is not a JSON object"),
    ],
)
def test_wrong_values_are_refused(tmp_path: Path, backend: Any, words: str) -> None:
    """A wrong value is refused with the file, the key and the allowed values."""
    said = refusal(pair(tmp_path, backend))
    assert words in said
    assert "htp.conf" in said


def test_the_wrong_file_is_told_apart(tmp_path: Path) -> None:
    """A backend file, an LPAI file, invalid JSON and a missing file each have their own message."""
    pair(tmp_path, {"devices": []})
    assert "pass the QNN tools' config file" in refusal(tmp_path / "htp.conf")
    path = tmp_path / "tool.json"
    for content, words in (
        (
            '{"backend_extensions": {"shared_library_path": "libQnnLpaiNetRunExtensions.so"}}',
            "LPAI",
        ),
        (
            '{"backend_extensions": {"config_file_path": "no.conf"}}',
            "names 'no.conf' in backend_extensions.config_file_path",
        ),
        ('{"backend_extensions": {"config_file_path": 7}}', "not the name of a file"),
        ('{"backend_extensions": []}', "is not an object"),
        ('{"backend_extension": {}}', "did you mean 'backend_extensions'"),
        ("[" * 100_000, "is not JSON"),
        ("{,}", "is not JSON"),
        ("\xff", "is not JSON"),
    ):
        path.write_bytes(content.encode("latin-1"))
        assert words in refusal(path)
    path.write_bytes(b"{}")
    assert read_htp_config(path) == HtpToolConfig()


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A config file over 1 MiB is refused."""
    path = tmp_path / "tool.json"
    path.write_bytes(b" " * (2 << 20))
    assert "over the limit of 1.00 MiB" in refusal(path)


def test_the_backends_file_may_be_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend file in the current folder comes before the file beside the tool file."""
    path = pair(tmp_path, {"devices": [{"soc_model": 57}]})
    here = tmp_path / "here"
    here.mkdir()
    (here / "htp.conf").write_text('{"devices": [{"soc_model": 69}]}', "utf-8")
    assert read_htp_config(path).soc_id == 57
    monkeypatch.chdir(here)
    assert read_htp_config(path).soc_id == 69


KEYS = st.sampled_from(
    [
        *("graphs", "devices", "context", "groupContext", "memory", "graph_names", "vtcm_mb", "O"),
        *("soc_model", "soc_id", "dsp_arch", "cores", "dlbc", "weight_sharing_enabled"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_read_or_refused_in_a_sentence(backend: Any) -> None:
    """Any JSON in the backend file gives a target or a QnnMemError."""
    with TemporaryDirectory() as folder:
        path = pair(Path(folder), backend)
        with suppress(QnnMemError):
            assert htp_target(read_htp_config(path), "g").soc.has_htp


@pytest.mark.parametrize("named", OUTSIDE)
def test_a_file_outside_both_folders_is_refused(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend file outside both folders is refused, by path, by link and by linked folder."""
    path, current = naming_outside(tmp_path, named)
    monkeypatch.chdir(current)
    reason = "is outside the folder of the tools' config file and the current folder"
    with pytest.raises(LoadError, match=reason):
        read_htp_config(path)


def test_files_below_the_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend file below either folder is read, by relative path, full path or inner link."""
    monkeypatch.chdir(tmp_path)
    for path in naming_below(tmp_path):
        read_htp_config(path)
