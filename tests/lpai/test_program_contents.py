"""The content that a program in a binary may have; any other content is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper

from qnnmem.errors import ProgramError
from qnnmem.lpai.program.contents import check_contents

Change = Callable[[onnx.ModelProto], Any]


def program() -> onnx.ModelProto:
    """Return a program with a branch, so that graphs nest."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[4] x, bool c) => (float[4] y) <float[4] w = {1,2,3,4}>
    { h = Add(x, w)
      y = If (c) <then_branch = t () => (float[4] u) { u = Relu(h) },
                  else_branch = f () => (float[4] v) { k = Constant <value = float[4] {1,2,3,4}> ()
                                                       v = Add(h, k) }> }"""
    return onnx.parser.parse_model(text)


def outside() -> TensorProto:
    """Return a tensor whose data is in another file."""
    tensor = TensorProto(name="out", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    return tensor


def sparse() -> onnx.SparseTensorProto:
    """Return a sparse tensor whose data is in another file."""
    return onnx.SparseTensorProto(values=outside(), indices=outside(), dims=[4])


def inner(model: onnx.ModelProto) -> Any:
    """Return the else branch."""
    return model.graph.node[1].attribute[1].g


def constant(graph: onnx.GraphProto, **value: Any) -> None:
    """Add a Constant node with this attribute."""
    node = graph.node.add(op_type="Constant", output=["k2"])
    node.attribute.append(AttributeProto(name="sparse_value", **value))


def call(model: onnx.ModelProto) -> None:
    """Add a function whose constant is in another file, and a call of it."""
    made = helper.make_node("Constant", [], ["m"], value=outside())
    own = helper.make_function("own", "Own", [], ["m"], [made], model.opset_import)
    model.functions.append(own)
    model.graph.node.add(op_type="Own", domain="own", output=["o"])


def retrain(model: onnx.ModelProto) -> None:
    """Add training information."""
    model.training_info.add().algorithm.initializer.append(outside())


REFUSED: dict[str, Change] = {
    "initializer": lambda m: m.graph.initializer.append(outside()),
    "inner initializer": lambda m: inner(m).initializer.append(outside()),
    "value beside": lambda m: m.graph.initializer[0].external_data.add(key="location", value="s"),
    "location alone": lambda m: setattr(m.graph.initializer[0], "data_location", 1),
    "segment": lambda m: m.graph.initializer[0].segment.SetInParent(),
    "sparse initializer": lambda m: m.graph.sparse_initializer.append(sparse()),
    "inner sparse": lambda m: inner(m).sparse_initializer.append(sparse()),
    "sparse value": lambda m: constant(m.graph, type=11, sparse_tensor=sparse()),
    "inner sparse value": lambda m: constant(inner(m), type=11, sparse_tensor=sparse()),
    "sparse values": lambda m: constant(m.graph, type=12, sparse_tensors=[sparse()]),
    "sparse within": lambda m: constant(
        m.graph, type=11, sparse_tensor=onnx.SparseTensorProto(dims=[4])
    ),
    "under another type": lambda m: constant(m.graph, type=1, f=1.0, sparse_tensor=sparse()),
    "tensors": lambda m: constant(m.graph, type=9, tensors=[outside()]),
    "graphs": lambda m: constant(m.graph, type=10, graphs=[onnx.GraphProto(name="g")]),
    "deeper": lambda m: constant(
        m.graph, type=5, g=onnx.GraphProto(name="g", initializer=[outside()])
    ),
    "types": lambda m: constant(m.graph, type=14, type_protos=[onnx.TypeProto()]),
    "sparse type": lambda m: m.graph.input[0].type.sparse_tensor_type.SetInParent(),
    "reference": lambda m: constant(m.graph, type=1, ref_attr_name="outer"),
    "function": call,
    "overload": lambda m: setattr(m.graph.node[0], "overload", "other"),
    "training": retrain,
    "configuration": lambda m: m.configuration.add(name="two"),
    "placement": lambda m: m.graph.node[0].device_configurations.add(configuration_id="two"),
    "compiled elsewhere": lambda m: m.graph.node.add(op_type="EPContext", domain="com.microsoft"),
    "library": lambda m: m.graph.node.add(op_type="Snpe", domain="com.microsoft"),
    "searches": lambda m: m.graph.node.add(op_type="BeamSearch", domain="com.microsoft"),
    "no operator": lambda m: inner(m).node.add(op_type="EPContext"),
    "no domain": lambda m: inner(m).node.add(op_type="Relu", domain="com.stranger"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_listed_is_refused(what: str) -> None:
    """Content that is not on the allow-list is refused in one line, at any depth."""
    model = program()
    REFUSED[what](model)
    with pytest.raises(ProgramError) as caught:
        check_contents(model)
    assert str(caught.value).isprintable()


def test_fields_that_onnx_does_not_have_are_refused() -> None:
    """Unknown protobuf fields and attribute types are refused; newer versions may use them."""
    unknown = b"\xda\x3f\x06secret"
    whole = program().SerializeToString()
    node = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto.FromString(unknown)]))
    kind = onnx.AttributeProto.FromString(b"\xa0\x01\x63")  # type 99
    node_of_kind = onnx.NodeProto(op_type="Relu", attribute=[kind])
    for model in (
        onnx.ModelProto.FromString(whole + unknown),
        node,
        onnx.ModelProto(graph=onnx.GraphProto(node=[node_of_kind])),
    ):
        with pytest.raises(ProgramError, match="fields that ONNX does not define"):
            check_contents(model)


def test_notes_are_dropped() -> None:
    """Documentation strings, metadata and annotations are dropped."""
    model = program()
    expected = program().graph
    for message in (model, model.graph, model.graph.node[0], inner(model), inner(model).node[0]):
        message.doc_string = "see secret"
        message.metadata_props.add(key="ort_config", value="secret")
    model.graph.initializer[0].doc_string = "secret"
    model.graph.input[0].type.denotation = "secret"
    inner(model).quantization_annotation.add(tensor_name="secret")
    check_contents(model)
    assert model.graph == expected
    assert b"secret" not in model.SerializeToString()


def test_defaults_are_as_good_as_nothing() -> None:
    """Fields that explicitly hold their default are accepted."""
    model = program()
    model.graph.initializer[0].data_location = TensorProto.DEFAULT
    model.graph.node[0].overload = ""
    check_contents(model)


@pytest.mark.parametrize(
    ("domain", "operator"),
    [
        *(("", "Conv"), ("ai.onnx", "Relu"), ("ai.onnx.ml", "TreeEnsembleClassifier")),
        *(("com.microsoft", "QLinearAdd"), ("com.microsoft", "DequantizeLinear")),
        *(("", "SimplifiedLayerNormalization"), ("com.microsoft", "Gelu")),
    ],
)
def test_operators_of_real_models_are_listed(domain: str, operator: str) -> None:
    """Operators of ONNX and those written by onnxruntime's optimiser and quantizer are allowed."""
    model = program()
    model.graph.node[0].op_type, model.graph.node[0].domain = operator, domain
    check_contents(model)


@pytest.mark.parametrize("name", [b"Relu", b"x", b"else_branch"])
def test_names_that_are_not_text_are_refused(name: bytes) -> None:
    """A name that is not valid UTF-8 is refused."""
    blob = program().SerializeToString().replace(name, b"\xff" * len(name))
    try:
        model = onnx.ModelProto.FromString(blob)
    except Exception:  # some versions of protobuf fail to decode the name
        pytest.skip("protobuf refuses it first")
    with pytest.raises(ProgramError, match="not valid text"):
        check_contents(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda m: m.graph.initializer.append(outside()),
            "constant 'out' is stored in another file, which is not allowed in a binary",
        ),
        (
            lambda m: m.graph.node.add(op_type="Own", domain="mine"),
            "the program uses operator 'Own' of domain 'mine', which is not allowed in a binary",
        ),
        (
            lambda m: m.graph.node.add(op_type="Own"),
            "the program uses operator 'Own', which is not allowed in a binary",
        ),
        (
            retrain,
            "the program contains training_info of ModelProto, which might refer to another file "
            "or change what runs; this is not allowed in a binary",
        ),
    ],
)
def test_a_refusal_names_what_is_refused(change: Change, said: str) -> None:
    """A refusal names the content that is not allowed."""
    model = program()
    change(model)
    with pytest.raises(ProgramError) as caught:
        check_contents(model)
    assert str(caught.value) == said


def test_a_name_that_cannot_be_decoded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoding error that protobuf raises late is also refused."""

    def undecodable(_message: Any) -> None:
        b"\xff".decode()

    monkeypatch.setitem(check_contents.__globals__, "_check", undecodable)
    with pytest.raises(ProgramError, match="the program contains names that are not valid text"):
        check_contents(program())
