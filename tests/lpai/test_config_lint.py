"""Findings about config files: each kind occurs once, and valid files have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qnnmem.lpai.config.check import MAX_FINDINGS, lint_files
from qnnmem.lpai.config.json_positions import JsonKind
from qnnmem.lpai.config.schema import BY_PATH, LPAI_KEYS, TOOL_KEYS, Key
from qnnmem.results.lint import ConfigFinding, LintResult, Severity

LIBRARY = "libQnnLpaiNetRunExtensions.so"
ALL_LPAI = {
    "lpai_backend": {"target_env": "adsp", "enable_hw_ver": "v6"},
    "lpai_graph": {
        "prepare": {
            "enable_batchnorm_fold": True,
            "exclude_io": False,
            "enable_layer_fusion": True,
            "enable_channel_align": False,
            "enable_pad_split": False,
            "enable_per_layer": False,
        },
        "execute": {
            "fps": 30,
            "ftrt_ratio": 10,
            "client_type": "real_time",
            "affinity": "hard",
            "core_selection": 2,
            "mem_type": "tcm",
        },
    },
    "lpai_profile": {"level": "detailed"},
    "lpai_debug": {"anything": [1]},
}
ALL_TOOL = {
    "backend_extensions": {"shared_library_path": LIBRARY, "config_file_path": "lpai.conf"},
    "context_configs": {
        "context_priority": "high",
        "async_execute_queue_depth": 4,
        "enable_graphs": ["g"],
        "memory_limit_hint": 100,
        "is_persistent_binary": True,
        "cache_compatibility_mode": "strict",
        "graph_retention_order": ["g"],
    },
    "graph_configs": [
        {
            "graph_name": "g",
            "graph_priority": "low",
            "graph_profiling_start_delay": 0.5,
            "graph_profiling_num_executions": 3,
        }
    ],
    "profile_configs": {"num_max_events": 10},
    "async_graph_execution_config": {},
}


def write(folder: Path, name: str, value: object) -> Path:
    """Write a config file and return its path; text is written unchanged."""
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1), "utf-8")
    return path


def lint_lpai(folder: Path, value: object) -> tuple[ConfigFinding, ...]:
    """Return the findings about an LPAI file alone."""
    return lint_files([write(folder, "lpai.conf", value)]).findings


def lint_execute(folder: Path, **keys: object) -> tuple[ConfigFinding, ...]:
    """Return the findings about an LPAI file with these keys in its execute section."""
    return lint_lpai(folder, {"lpai_graph": {"execute": keys}})


def lint_pair(folder: Path, tool: object, lpai: object) -> LintResult:
    """Return the report on a tool file that names an LPAI file."""
    write(folder, "lpai.conf", lpai)
    return lint_files([write(folder, "tool.json", tool)])


def tool(**more: object) -> dict[str, Any]:
    """Return a tool file with the two paths and these sections."""
    return {"backend_extensions": ALL_TOOL["backend_extensions"], **more}


def checks(findings: tuple[ConfigFinding, ...]) -> list[tuple[str, str]]:
    """Return the check and the key of each finding."""
    return [(finding.check, finding.key) for finding in findings]


def test_files_with_every_key_are_fine(tmp_path: Path) -> None:
    """A pair of files with every documented key and allowed values has no findings."""
    report = lint_pair(tmp_path, ALL_TOOL, ALL_LPAI)
    assert report.findings == ()
    assert [file.kind for file in report.files] == ["tool file", "LPAI file"]


@pytest.mark.parametrize("key", [*TOOL_KEYS, *LPAI_KEYS], ids=lambda key: key.path)
def test_the_full_files_hold_every_key(key: Key) -> None:
    """The pair of full files contains every key of the tables."""
    node: Any = {**ALL_TOOL, **ALL_LPAI}
    for step in key.path.split("."):
        node = node[step.removesuffix("[]")]
        node = node[0] if step.endswith("[]") else node
    assert node is not None


@pytest.mark.parametrize("key", BY_PATH.values(), ids=lambda key: key.path)
def test_every_key_says_where_it_comes_from(key: Key) -> None:
    """Every key states its source and belongs to a known section."""
    assert key.source.startswith(("documented: ", "reported: "))
    assert not key.section or key.section.removesuffix("[]") in BY_PATH


def of_wrong_type(kind: JsonKind) -> list[object]:
    """Return values of every type except this one."""
    samples: dict[JsonKind, object] = {
        JsonKind.OBJECT: {},
        JsonKind.LIST: [],
        JsonKind.TEXT: "x",
        JsonKind.WHOLE: 1,
        JsonKind.NUMBER: 1.5,
        JsonKind.FLAG: True,
        JsonKind.NULL: None,
    }
    fitting = {kind, JsonKind.WHOLE} if kind is JsonKind.NUMBER else {kind}
    return [value for other, value in samples.items() if other not in fitting]


@pytest.mark.parametrize("key", BY_PATH.values(), ids=lambda key: key.path)
def test_every_key_refuses_every_other_type(key: Key, tmp_path: Path) -> None:
    """A value of the wrong type is an error, reported at its key and line."""
    for value in of_wrong_type(key.kind):
        content: Any = value
        for step in reversed(key.path.split(".")):
            content = {step.removesuffix("[]"): [content] if step.endswith("[]") else content}
        found = lint_files([write(tmp_path, "x.json", content)]).findings
        shown = key.path.replace("[]", "[0]")
        assert ("wrong-type", shown) in checks(found), value
        (fault,) = [finding for finding in found if finding.check == "wrong-type"]
        assert fault.severity is Severity.ERROR
        assert fault.line == 1 + content_line(key)


def content_line(key: Key) -> int:
    """Return the number of lines above a key's value."""
    return len(key.path.split(".")) + key.path.count("[]")


@pytest.mark.parametrize(
    ("keys", "cure"),
    [
        ({"fps": "30"}, "write 30 without quotes"),
        ({"fps": 1.0}, "write a whole number, e.g. 1"),
        ({"fps": -1}, "write 0 or more"),
        ({"core_selection": 1 << 32}, "write at most 4294967295"),
        ({"client_type": "realtime"}, 'write "real_time", or "non_real_time"'),
        ({"client_type": "REAL_TIME"}, 'write "real_time", or "non_real_time"'),
        ({"affinity": "x"}, 'write one of "soft" or "hard"'),
        ({"affinity": 1}, 'write one of "soft" or "hard"'),
    ],
)
def test_a_bad_value_comes_with_the_cure(
    keys: dict[str, object], cure: str, tmp_path: Path
) -> None:
    """The finding about a wrong value says what to write instead."""
    (finding,) = lint_execute(tmp_path, **keys)
    assert (finding.severity, finding.cure) == (Severity.ERROR, cure)


@pytest.mark.parametrize(
    ("value", "cure"), [("true", "write true without quotes"), (1, "write true")]
)
def test_flags_are_not_texts_or_numbers(value: object, cure: str, tmp_path: Path) -> None:
    """A flag given as a string or a number gets the right spelling as its cure."""
    (finding,) = lint_lpai(tmp_path, {"lpai_graph": {"prepare": {"exclude_io": value}}})
    assert finding.cure == cure


@pytest.mark.parametrize("value", ["TMC", "vtcm", "", "DDR", 3, None])
def test_a_bad_mem_type_shows_both_documented_messages(value: object, tmp_path: Path) -> None:
    """The finding about a wrong mem_type quotes both lines that a run would log."""
    (finding,) = lint_execute(tmp_path, mem_type=value)
    first = finding.sentence.index('"Invalid memory type"')
    assert finding.sentence.index('"Memory type only supports DDR & TCM"') > first


@pytest.mark.parametrize(
    ("value", "key", "near"),
    [
        ({"lpai_graph": {"execute": {"fpss": 1}}}, "lpai_graph.execute.fpss", "fps"),
        ({"lpai_graph": {"exceute": {}}}, "lpai_graph.exceute", "execute"),
        ({"lpai_backnd": {}}, "lpai_backnd", "lpai_backend"),
        ({"lpai_graph": {"FPS": 1}}, "lpai_graph.FPS", "lpai_graph.execute.fps"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(
    value: object, key: str, near: str, tmp_path: Path
) -> None:
    """A misspelt key or section is a warning with the nearest name."""
    (finding,) = lint_lpai(tmp_path, value)
    assert (finding.severity, finding.check, finding.key) == (Severity.WARNING, "unknown-key", key)
    assert finding.cure == f"did you mean {near}?"


def test_an_unknown_key_like_no_other_gets_the_list(tmp_path: Path) -> None:
    """An unknown key without a similar name gets a list of the known keys."""
    (finding,) = lint_lpai(tmp_path, {"lpai_backend": {"qqqq": 1}})
    assert finding.cure == "remove it, or use one of target_env, enable_hw_ver"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"lpai_graph": {"fps": 1}}, "fps belongs in lpai_graph.execute;"),
        ({"lpai_graph": {"execute": {"exclude_io": True}}}, "belongs in lpai_graph.prepare;"),
        ({"fps": 1}, "fps belongs in lpai_graph.execute;"),
        ({"lpai_graph": {"lpai_profile": {}}}, "belongs in the top-level object;"),
        (
            {"lpai_backend": {"is_persistent_binary": True}},
            "belongs in context_configs of the tool file;",
        ),
    ],
)
def test_a_known_key_in_the_wrong_section_is_an_error(
    value: object, sentence: str, tmp_path: Path
) -> None:
    """A known key in the wrong section is an error that names the right section."""
    (finding,) = lint_lpai(tmp_path, value)
    assert (finding.severity, finding.check) == (Severity.ERROR, "misplaced-key")
    assert sentence in finding.sentence


def test_a_repeated_key_is_an_error(tmp_path: Path) -> None:
    """A repeated key is an error, reported at the second line with the number of the first."""
    (finding,) = lint_lpai(
        tmp_path, '{"lpai_backend": {\n"target_env": "arm",\n"target_env": "arm"}}'
    )
    assert (finding.check, finding.line, finding.column) == ("duplicate-key", 3, 1)
    assert "first on line 2" in finding.sentence


def test_comments_do_not_hide_other_findings(tmp_path: Path) -> None:
    """A comment is an error, and the keys after it are still checked."""
    text = '{"lpai_graph": {"execute": {\n// frames\n"fps": "1", }}}'
    assert [f.check for f in lint_lpai(tmp_path, text)] == ["not-json", "wrong-type", "not-json"]


@pytest.mark.parametrize(
    ("target", "version", "found"),
    [
        ("adsp", "v6", []),
        ("adsp", "v7", []),
        ("arm", "v6", ["tcm-needs-adsp"]),
        ("x86", "v7", ["tcm-needs-adsp"]),
        ("adsp", "v5_1", ["tcm-needs-v6"]),
        ("arm", "v4", ["tcm-needs-adsp", "tcm-needs-v6"]),
    ],
)
def test_tcm_needs_adsp_and_v6(target: str, version: str, found: list[str], tmp_path: Path) -> None:
    """TCM without direct mode or before v6 is an error; DDR is allowed everywhere."""
    backend = {"target_env": target, "enable_hw_ver": version}
    for mem_type, expected in (("tcm", found), ("ddr", [])):
        graph = {"execute": {"mem_type": mem_type}}
        findings = lint_lpai(tmp_path, {"lpai_backend": backend, "lpai_graph": graph})
        assert [finding.check for finding in findings] == expected
        assert all(finding.severity is Severity.ERROR for finding in findings)


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"fps": 0}, True),
        ({"fps": 0, "client_type": "real_time"}, True),
        ({"fps": 0, "client_type": "non_real_time"}, False),
        ({"fps": 1, "client_type": "real_time"}, False),
    ],
)
def test_real_time_with_fps_0_is_a_warning(
    keys: dict[str, object], warned: bool, tmp_path: Path
) -> None:
    """A real_time client with fps 0 is a warning; real_time is the default."""
    found = [(f.check, f.severity) for f in lint_execute(tmp_path, **keys)]
    assert found == [("real-time-without-fps", Severity.WARNING)] * warned


@pytest.mark.parametrize(("mask", "warned"), [(0, 0), (1, 0), (2, 0), (3, 1), (0xFFFFFFFF, 0)])
def test_several_cores_are_a_warning(mask: int, warned: int, tmp_path: Path) -> None:
    """Selecting several cores is a warning; none, one or all cores are accepted."""
    assert [f.check for f in lint_execute(tmp_path, core_selection=mask)] == [
        "several-cores"
    ] * warned


@pytest.mark.parametrize(
    ("context", "lpai", "errors"),
    [
        ({}, {"lpai_backend": {"target_env": "adsp"}}, 1),
        ({}, {"lpai_graph": {"execute": {}}}, 1),  # adsp is the default
        ({}, {}, 1),
        ({"context_configs": {"is_persistent_binary": False}}, {"lpai_backend": {}}, 1),
        ({"context_configs": {"is_persistent_binary": True}}, {"lpai_backend": {}}, 0),
        ({}, {"lpai_backend": {"target_env": "arm"}}, 0),
        ({}, {"lpai_backend": {"target_env": "x86"}}, 0),
        ({}, {"lpai_graph": {"prepare": {}}}, 0),  # for the offline generator only
        ({}, {"lpai_graph": {"prepare": {}, "execute": {}}}, 1),
    ],
)
def test_direct_mode_needs_a_persistent_binary(
    context: dict[str, object], lpai: object, errors: int, tmp_path: Path
) -> None:
    """A target of adsp, from the LPAI file, needs a persistent binary in the tool file."""
    report = lint_pair(tmp_path, tool(**context), lpai)
    key = "context_configs.is_persistent_binary"
    assert checks(report.findings) == [("direct-needs-persistent", key)] * errors


def test_a_missing_lpai_file_is_an_error(tmp_path: Path) -> None:
    """A missing LPAI file is an error at its path in the tool file."""
    (finding,) = lint_files([write(tmp_path, "tool.json", tool())]).findings
    assert (finding.check, finding.severity) == ("missing-file", Severity.ERROR)
    assert finding.line == 4


def test_paths_count_from_the_tool_file_and_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is searched beside the tool file first, then in the current folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = write(tmp_path, "tool.json", tool(context_configs={"is_persistent_binary": True}))
    write(here, "lpai.conf", {"lpai_backend": {}})
    assert lint_files([path]).files[1].path == "lpai.conf"
    write(tmp_path, "lpai.conf", {"lpai_backend": {}})
    assert lint_files([path]).files[1].path == str(tmp_path / "lpai.conf")


@pytest.mark.parametrize("named", ["../lpai.conf", "link.conf", "folder/lpai.conf", "{}/lpai.conf"])
def test_a_file_outside_the_folder_is_not_read(named: str, tmp_path: Path) -> None:
    """An LPAI file outside the tool file's folder is not read and is reported."""
    write(tmp_path, "lpai.conf", {"lpai_backend": {}})
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link.conf").symlink_to(tmp_path / "lpai.conf")
    (inner / "folder").symlink_to(tmp_path)
    extensions = {"shared_library_path": LIBRARY, "config_file_path": named.format(tmp_path)}
    report = lint_files([write(inner, "tool.json", {"backend_extensions": extensions})])
    assert [f.check for f in report.findings] == ["outside-folder"]
    assert len(report.files) == 1


def test_paths_of_the_device_are_looked_for_beside_the_tool_file(tmp_path: Path) -> None:
    """For a device path, the file beside the tool file is checked, with a note."""
    extensions = {
        "shared_library_path": "/nowhere/lib/libQnnLpaiNetRunExtensions.so",
        "config_file_path": "/nowhere/lpai.conf",
    }
    context = {"is_persistent_binary": True}
    content = {"backend_extensions": extensions, "context_configs": context}
    report = lint_pair(tmp_path, content, {"lpai_backend": {}})
    assert [f.check for f in report.findings] == ["missing-library", "other-place"]
    assert {f.severity for f in report.findings} == {Severity.NOTE}
    assert report.passes


@pytest.mark.parametrize("named", ["/", ".", "..", "\0", "x" * 5000, "\ud800", "tool.json", "~"])
def test_odd_paths_end_in_a_sentence(named: str, tmp_path: Path) -> None:
    """Folders, impossible names and the tool file itself as LPAI file end in an error."""
    extensions = {"shared_library_path": LIBRARY, "config_file_path": named}
    report = lint_files([write(tmp_path, "tool.json", {"backend_extensions": extensions})])
    assert not report.passes
    assert len(report.files) <= 2


def test_each_file_is_checked_once(tmp_path: Path) -> None:
    """A file that is named several times is checked once."""
    lpai = write(tmp_path, "lpai.conf", {"lpai_graph": {"execute": {"fps": "1"}}})
    pair = [write(tmp_path, "tool.json", ALL_TOOL), lpai]
    for paths in (pair, pair[::-1], [*pair, *pair], [pair[0], tmp_path / "." / "lpai.conf"]):
        report = lint_files(paths)
        assert [f.check for f in report.findings] == ["wrong-type"]
        assert [file.named_by for file in report.files] == [None, None]
    assert lint_files(pair[:1]).files[1].named_by == str(pair[0])


def test_findings_follow_the_order_of_the_files(tmp_path: Path) -> None:
    """Findings follow the order of the files: the tool file first."""
    report = lint_pair(tmp_path, tool(zzzz=1), {"lpai_backend": {"target_env": "q"}})
    assert [Path(f.file).name for f in report.findings] == ["tool.json", "lpai.conf"]


@pytest.mark.parametrize(
    ("content", "check"),
    [
        ({"graphs": [{"vtcm_mb": 8}], "devices": []}, "htp-file"),
        ({"something": "else"}, "unknown-file"),
        ({}, "unknown-file"),
    ],
)
def test_other_files_are_named_as_what_they_are(
    content: object, check: str, tmp_path: Path
) -> None:
    """An HTP config file is named as such; any other file is unknown."""
    (finding,) = lint_files([write(tmp_path, "x.json", content)]).findings
    assert (finding.severity, finding.check) == (Severity.ERROR, check)


def test_a_file_of_another_verb_is_not_linted(tmp_path: Path) -> None:
    """A file that another command reads is not linted; its type is stated instead."""
    report = lint_files([write(tmp_path, "x.json", {"format": "eAI v5.9", "nodes": []})])
    assert report.findings == ()
    assert "is an eAI report" in str(report.files[0].unreadable)


def test_a_tool_file_for_the_htp_gets_one_sentence(tmp_path: Path) -> None:
    """A tool file with an HTP library gets one error, and its LPAI file is not read."""
    extensions = {
        "shared_library_path": "libQnnHtpNetRunExtensions.so",
        "config_file_path": "htp.json",
    }
    (finding,) = lint_files(
        [write(tmp_path, "t.json", {"backend_extensions": extensions})]
    ).findings
    assert (finding.check, finding.severity) == ("htp-file", Severity.ERROR)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"context_configs": {}}, ["missing-key"]),
        ({"backend_extensions": {}}, ["missing-key", "missing-key"]),
        ({"graph_configs": [{}]}, ["missing-key", "missing-key"]),
        (
            {"backend_extensions": {"shared_library_path": "libother.so"}},
            ["missing-key", "library-name"],
        ),
    ],
)
def test_what_a_tool_file_lacks(content: object, found: list[str], tmp_path: Path) -> None:
    """Missing sections, keys and graph names are reported, and so is an unusual library."""
    findings = lint_files([write(tmp_path, "tool.json", content)]).findings
    assert sorted(f.check for f in findings) == sorted(found)


def test_pointing_to_another_tool_file_is_an_error(tmp_path: Path) -> None:
    """A tool file named as the LPAI file is an error."""
    report = lint_pair(tmp_path, tool(), {"context_configs": {}})
    assert ("wrong-file", "backend_extensions.config_file_path") in checks(report.findings)


def test_an_unreadable_file_does_not_hide_the_others(tmp_path: Path) -> None:
    """An unreadable file is reported, and the other files are still checked."""
    bad = write(tmp_path, "bad.conf", '{"lpai_backend": {')
    good = write(tmp_path, "good.conf", {"lpai_backend": {"target_env": 1}})
    report = lint_files([bad, good])
    assert [file.path for file in report.unreadable] == [str(bad)]
    assert [f.check for f in report.findings] == ["wrong-type"]


def test_findings_are_limited(tmp_path: Path) -> None:
    """The findings stop at a limit, and a last finding says that there are more."""
    content = {"lpai_graph": {"execute": {f"key{n}": n for n in range(5000)}}}
    findings = lint_lpai(tmp_path, content)
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].check == "too-many"


def test_strict_turns_warnings_into_failure(tmp_path: Path) -> None:
    """A warning passes, except with `strict`."""
    path = write(tmp_path, "lpai.conf", {"lpai_backend": {"target": "arm"}})
    assert lint_files([path]).passes
    assert not lint_files([path], strict=True).passes


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    """Names from files are escaped and cut before they are printed."""
    content = {"lpai_backend": {"\x1b[31m" + "x" * 10_000: 1}}
    (finding,) = lint_lpai(tmp_path, content)
    assert "\x1b" not in finding.key
    assert len(finding.key) < 120
