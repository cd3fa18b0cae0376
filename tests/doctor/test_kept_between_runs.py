"""What the doctor keeps between runs: faster the second time, and never another answer."""

import re
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import run

from qnnmem.cache import cache_folder
from qnnmem.doctor import cache, known_codes
from qnnmem.doctor.fleet import executors
from qnnmem.doctor.kept_patterns import kept_patterns
from qnnmem.qnn import numbers
from qnnmem.report import doctor_remedies

HALF = "kept \ud800"  # of a surrogate pair, which no file holds
EXPRESSIONS = (
    (rb"\b(?:kept|keep)s? (?P<what>[a-z]{1,9})(?:\.|(?P<end>!))", 0),
    (r"kept (?P<one>\w+) and (\d+)", re.IGNORECASE),
    (r"(?m)^kept(?=[^\n]*\d)[\w\xe4]+$", re.ASCII),
    (r"kept ä+", 0),
    (HALF, 0),
)
TEXTS = ("kept bytes. keeps two!", "KEPT a and 7", "kept\nkept_9\n", "kept ää 1")
ENTRY = """## Ours

### Typical Logs

```
the frobnicator gave up
```

### Root Cause

It was tired. It had no room.

### Solutions

- rest
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known_codes._answers.cache_clear()


def _compiled() -> list[re.Pattern[str] | re.Pattern[bytes]]:
    re.purge()
    return [re.compile(text, flags) for text, flags in EXPRESSIONS]


def _found(pattern: re.Pattern[str] | re.Pattern[bytes]) -> list[object]:
    found: list[object] = [pattern.groupindex, pattern.groups, pattern.flags]
    for text in TEXTS:
        if isinstance(pattern.pattern, bytes):
            found += [(one.span(), one.groupdict()) for one in pattern.finditer(text.encode())]
        else:
            found += [(one.span(), one.groupdict()) for one in pattern.finditer(text)]
    return found


def _no_compiling(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    compiler = import_module("re._compiler")
    plain = compiler.compile
    asked: list[object] = []

    def compile_noted(text: object, flags: int = 0) -> object:
        asked.append(text)
        return plain(text, flags)

    monkeypatch.setattr(compiler, "compile", compile_noted)
    return asked


def test_kept_patterns_are_those_that_re_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is compiled, and everything matches as before."""
    plain = _compiled()
    with kept_patterns():
        _compiled()
    asked = _no_compiling(monkeypatch)
    with kept_patterns():
        again = _compiled()
    assert asked == [HALF]
    assert again == plain
    assert [*map(_found, again)] == [*map(_found, plain)]


def test_a_kept_list_that_is_no_good_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off, empty, with other numbers, or not ours."""
    plain = _compiled()
    with kept_patterns():
        _compiled()
    (path,) = cache_folder().glob("patterns-*")
    data = cache.load(path.name) or b""
    code = b"\x01\x00\x00\x00" * 4
    for bad in (data[:-1], b"", b"\x81", data.replace(data[-400:-300], code * 6 + code[:4])):
        cache.keep(path.name, bad)
        with kept_patterns():
            assert _compiled() == plain
    path.write_bytes(b"nothing of ours")
    with kept_patterns():
        assert _compiled() == plain


def test_re_is_as_before_also_after_an_error() -> None:
    """What stands in for the function of `re` goes away again."""
    compiler = import_module("re._compiler")
    before = compiler.compile
    with pytest.raises(re.error), kept_patterns():
        re.compile("(not closed")
    assert compiler.compile is before
    with kept_patterns():
        assert compiler.compile != before


def test_another_interpreter_compiles_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine is another, nothing is kept."""
    monkeypatch.setitem(sys.modules, "_sre", SimpleNamespace())
    with kept_patterns():
        assert re.compile(r"no engine (\d+) of ours")


def test_answers_about_codes_are_those_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tables and, from what was kept, without them."""
    names = (
        "qnn_graph_error_mem_alloc",
        "aee_enomemory",
        "enomem",
        "qnn_no_such_name",
        "mem_alloc",
    )
    codes = (-1006, -12, 0, 12, 1002, 4000, 5005, 999_999, 0x80000406, 1 << 40)
    wanted = [numbers.code_named(name) for name in names]
    known = [
        (code >= 1000 or code < 0) and any(one.code for one in numbers.meanings(code))
        for code in codes
    ]
    for _ in range(2):  # the second time without the tables
        assert [known_codes.code_named(name) for name in names] == wanted
        assert [known_codes.is_known(code) for code in codes] == known
        known_codes.keep()
        known_codes._answers.cache_clear()
        monkeypatch.setitem(sys.modules, "qnnmem.qnn.numbers", None)


def test_root_causes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the cache until the entry changes."""
    log, base = tmp_path / "a.log", tmp_path / "ours.md"
    log.write_text("QNN: the frobnicator gave up 1002\n")
    base.write_text(ENTRY)
    words = ("doctor", "--kb", str(base), "--format", "markdown", str(log))
    first = run(*words)
    assert "It was tired. It had no room." in first.stdout
    monkeypatch.setattr(doctor_remedies.Guide, "_entry", None)
    assert run(*words).stdout == first.stdout
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base.write_text(ENTRY.replace("tired", "hungry"))
    assert "It was hungry." in run(*words).stdout


def test_workers_are_copies_only_where_there_is_one_thread() -> None:
    """Another thread may hold a lock that a copy would wait for."""
    alone = sys.platform == "linux" and threading.active_count() == 1
    assert executors._may_fork() == alone
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert not executors._may_fork()
    finally:
        done.set()
        other.join()
