"""A child process that does jobs: words of the command line in, their results out.

It imports what most jobs need before it is asked, so that one that waits answers at once, and
remembers the models that it has read, so that one with another setting does too.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from qnnmem.child import (
    REPLY_LIMIT,
    describe_limit,
    limit_memory,
    open_replies,
    read_frame,
    write_frame,
)
from qnnmem.errors import FreeDimensions, LoadError, QnnMemError
from qnnmem.text import sentence

_AHEAD = (
    *("numpy", "onnx", "msgspec", "qnnmem.loader", "qnnmem.planner", "qnnmem.cli.plan"),
    *("qnnmem.report.plan_json", "qnnmem.cli.progress", "qnnmem.cli.files"),
)


class _TooMuch(Exception):
    """More than a result may have."""


class _Result(io.StringIO):
    """What the command line prints, up to a limit."""

    def write(self, text: str, /) -> int:
        if self.tell() + len(text) > REPLY_LIMIT:
            raise _TooMuch
        return super().write(text)


def main() -> int:
    """Do one job after the other until the parent closes the pipe."""
    from qnnmem.loader.model_cache import MODEL_CACHE

    limit = int(sys.argv[1])
    limit_memory(limit)
    replies = open_replies()
    MODEL_CACHE.set({})
    for module in _AHEAD:
        if _is_asked():  # then only what it needs
            break
        with suppress(ImportError):
            import_module(module)
    requests = sys.stdin.buffer
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  for all jobs
    while (frame := read_frame(requests, REPLY_LIMIT)) is not None:
        request, _ = frame
        os.chdir(request["folder"])
        try:
            header, payload = _done(request["words"], replies)
        except MemoryError:
            header, payload = _refused(f"{describe_limit(limit)} are used up"), b""
        os.chdir(os.sep)  # the folder of the job is about to go
        write_frame(replies, header, payload)
    return 0


def _is_asked() -> bool:
    """Whether a request is there already."""
    import select

    if os.name != "posix":  # where only sockets can be asked
        return False
    return bool(select.select([0], [], [], 0)[0])


def _refused(said: str, code: int = 2) -> dict[str, Any]:
    return {"error": said, "exit_code": code}


def _what_helps(exc: QnnMemError) -> dict[str, Any]:
    """Settings with which the same goes further, and whether nothing does: the file is no good."""
    settings = [[one.name, one.value] for one in getattr(exc, "settings", ())]
    is_open = bool(settings) or isinstance(exc, FreeDimensions)
    stage = exc.stage if isinstance(exc, LoadError) else "none"
    is_guess = bool(getattr(exc, "untried", ""))
    return {
        "settings": settings,
        "is_guess": is_guess,
        "is_unreadable": not is_open and stage in ("", "read", "guard"),
    }


def _done(words: list[str], replies: BinaryIO) -> tuple[dict[str, Any], bytes]:
    import click

    from qnnmem.cli.progress import LISTENER
    from qnnmem.cli.usage import sentence as usage_sentence
    from qnnmem.cli.verbs import qnnmem
    from qnnmem.flags import flag

    alone = threading.Lock()

    def tell(doing: str) -> None:
        with alone:  # several threads may compile
            write_frame(replies, {"doing": doing})

    LISTENER.set(tell)
    sys.argv = ["qnnmem", *words]  # which some verbs repeat in what they recommend
    before, printed = sys.stdout, _Result()
    sys.stdout = printed
    try:
        code = qnnmem.main(list(words), prog_name="qnnmem", standalone_mode=False)
        text = printed.getvalue()
    except QnnMemError as exc:
        said = exc.sentence(flag)
        return {**_refused(said, exc.exit_code), **_what_helps(exc)}, b""
    except click.ClickException as exc:
        return _refused(usage_sentence(exc)), b""
    except _TooMuch:
        return _refused("the result is too large to be shown"), b""
    except MemoryError:
        raise
    except Exception as exc:  # the parent reports it
        return _refused(f"internal error, please report it: {sentence(exc)}", 70), b""
    finally:
        sys.stdout = before
    return {"exit_code": code if isinstance(code, int) else 0}, text.encode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
