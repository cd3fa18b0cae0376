"""A Python error proposes arguments in Python syntax."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

import qnnmem
from qnnmem.errors import FreeDimensions, Setting, UsageError, join_words


@pytest.mark.parametrize(
    ("shape", "argument"),
    [
        (["batch", 4], "dims={'batch': 1}"),
        (["batch", "x=y", 3], None),
        ([None, 4], "shapes={'x': (1, 4)}"),
    ],
)
def test_a_proposed_argument_can_be_pasted(
    shape: list[str | int | None], argument: str | None, tmp_path: Path
) -> None:
    """The proposed arguments make `load` succeed when pasted."""
    path = tmp_path / "free.onnx"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    with pytest.raises(FreeDimensions) as refused:
        qnnmem.load(path)
    found = re.search(r"e\.g\. with (.*)$", str(refused.value))
    assert found
    assert argument in (None, found[1])
    assert qnnmem.load(path, **eval(f"dict({found[1]})")).inputs == ("x",)  # noqa: S307 - trusted text


def test_settings_of_one_kind_are_one_argument() -> None:
    """Settings of one kind are joined into one argument."""
    words = (
        *("use ", Setting("dims", "a=1"), " ", Setting("dims", "b=2"), " "),
        *(Setting("shapes", "x=1x3"), " ", Setting("shapes", "s=scalar"), " "),
        *(Setting("values", "sr=16000"), " ", Setting("values", "on=true"), ", or "),
        *(Setting("values", "m=@a b.npy"), " and ", Setting("states", "h=hn"), "; ", Setting("io")),
    )
    assert join_words(words) == (
        "use dims={'a': 1, 'b': 2}, shapes={'x': (1, 3), 's': ()}, values={'sr': 16000, "
        "'on': True}, or values={'m': 'a b.npy'} and states={'h': 'hn'}; io"
    )


def test_a_state_that_is_none_is_said_as_it_was_given() -> None:
    """An invalid state is quoted as a Python mapping."""
    tensor = qnnmem.Tensor("x", qnnmem.DType.INT8, (1,))
    model = qnnmem.Model("m", "onnx", {"x": tensor}, (), ("x",), ("x",))
    with pytest.raises(UsageError, match=r"states=\{'h': 'n'\}: expected input=output"):
        qnnmem.plan(model, options={"states": {"h": "n"}})
