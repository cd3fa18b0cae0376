from __future__ import annotations

from qnnmem.child import ChildProcess

ECHO = "qnnmem.load.onnx.trial.program"


def test_a_child_answers_one_request_after_the_other() -> None:
    """Each frame gets its own answer."""
    with ChildProcess(ECHO, 60.0) as child:
        for verb in ("first", "second"):
            frame = child.ask({"verb": verb})
            assert frame is not None
            assert verb in frame[0]["error"]
    assert not child.expired


def test_a_child_that_takes_too_long_is_ended() -> None:
    """No answer comes, and the reason can be told from a crash."""
    with ChildProcess(ECHO, 0.01) as child:
        assert child.receive() is None
        assert child.expired


def test_a_child_that_dies_gives_no_answer() -> None:
    """A broken pipe is not an exception of the parent."""
    with ChildProcess("qnnmem.no_such_module", 60.0) as child:
        assert child.ask({}, bytes(1 << 20)) is None
        assert not child.expired
