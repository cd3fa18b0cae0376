"""`QnnSystemContext`: create, read, free, and reads that are refused after the free."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from qnnmem import lpai
from qnnmem.errors import QnnError, UsageError
from qnnmem.lpai.binary import unpack
from qnnmem.lpai.inspect import binary_info
from qnnmem.lpai.selftest.models import binary
from qnnmem.qnn.binary_info import (
    ApiVersion,
    BinaryInfo,
    BinaryInfoV1,
    BinaryInfoV2,
    BinaryInfoV3,
    GraphInfo,
    GraphInfoV2,
    GraphInfoV3,
)
from qnnmem.qnn.c_names import (
    QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1,
    QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3,
)
from qnnmem.qnn.enums import GraphOption, MemType
from qnnmem.qnn.tensor import QnnTensor

VERSIONS = {
    1: (BinaryInfoV1, GraphInfo),
    2: (BinaryInfoV2, GraphInfoV2),
    3: (BinaryInfoV3, GraphInfoV3),
}


def code_of(call: Callable[[], object]) -> tuple[int, str, str]:
    """Return the code, the rule and the call of a failure."""
    with pytest.raises(QnnError) as caught:
        call()
    found = caught.value.finding
    return caught.value.code, found.rule, found.call


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_the_struct_of_the_version(version: int) -> None:
    """The binary info is the struct of the requested version."""
    info = lpai.SystemContext.create(version=version).get_binary_info(binary())
    whole, part = VERSIONS[version]
    assert type(info) is whole
    assert info.version == version
    assert {type(graph) for graph in info.graphs} == {part}
    assert {int(graph.version) for graph in info.graphs} == {version}


def test_the_answer_has_what_the_c_struct_has() -> None:
    """The binary info holds the same values as the JSON of `inspect`."""
    content = bytes(binary())
    info = lpai.SystemContext.create().get_binary_info(content)
    said = binary_info(unpack(content), len(content)).info
    assert info.version == QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_1
    one = info.context_binary_info_v1
    assert (one.backend_id, one.build_id) == (said.backend_id, said.build_id) == (12, one.build_id)
    assert one.core_api_version == ApiVersion.parse(said.core_api_version)
    assert one.backend_api_version == ApiVersion.parse(said.backend_api_version)
    assert one.context_blob_version == ApiVersion(1, 0, 0)
    assert one.context_blob_size == said.context_blob_size == len(content)
    assert (one.soc_version, one.num_context_tensors, one.context_tensors) == ("", 0, ())
    assert (one.hw_info_blob_size, one.hw_info_blob) == (0, b"")
    assert one.num_graphs == len(one.graphs) == said.num_graphs > 1
    for graph, other in zip(one.graphs, said.graphs, strict=True):
        first = graph.graph_info_v1
        assert first.graph_name == other.info.graph_name
        assert first.num_graph_inputs == other.info.num_graph_inputs
        assert first.num_graph_outputs == other.info.num_graph_outputs
        names = [tensor.info.name for tensor in other.info.graph_inputs]
        assert [tensor.name for tensor in first.graph_inputs] == names


def test_later_versions_have_their_own_members() -> None:
    """Members of later versions that LPAI does not use are empty, as in C."""
    info = lpai.SystemContext.create(version=3).get_metadata(binary())
    assert info.version == QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3
    three = info.context_binary_info_v3
    assert (three.platform_info, three.soc_model, three.context_metadata_size) == (None, 0, 0)
    graph = three.graphs[0].graph_info_v3
    assert (graph.num_updateable_tensors, graph.graph_blob_info_size) == (0, 0)
    assert (graph.start_op_index, graph.end_op_index) == (0, 0)
    two = lpai.SystemContext.create(version=2).get_binary_info(binary())
    assert two.context_binary_info_v2.platform_info is None


@pytest.mark.parametrize("version", VERSIONS)
def test_another_struct_of_the_union_cannot_be_read(version: int) -> None:
    """Reading a struct of another version raises UsageError with the filled version."""
    info = lpai.SystemContext.create(version=version).get_binary_info(binary())
    for other in set(VERSIONS) - {version}:
        with pytest.raises(UsageError, match=f"BINARY_INFO_VERSION_{version}"):
            getattr(info, f"context_binary_info_v{other}")
        with pytest.raises(UsageError, match=f"GRAPH_INFO_VERSION_{version}"):
            getattr(info.graphs[0], f"graph_info_v{other}")


def test_nothing_is_answered_after_free() -> None:
    """After `free`, every call on the handle fails with 30000, a second free included."""
    system = lpai.SystemContext.create()
    system.free()
    assert system.is_freed
    read = "QnnSystemContext_getBinaryInfo"
    assert code_of(lambda: system.get_binary_info(binary())) == (30000, "R16", read)
    meta = "QnnSystemContext_getMetadata"
    assert code_of(lambda: system.get_metadata(binary())) == (30000, "R16", meta)
    assert code_of(system.free) == (30000, "R16", "QnnSystemContext_free")


READS: dict[str, Callable[[BinaryInfo, GraphInfo, QnnTensor], object]] = {
    "the count of graphs": lambda info, _graph, _tensor: info.num_graphs,
    "the graphs": lambda info, _graph, _tensor: info.graphs,
    "the build id": lambda info, _graph, _tensor: info.build_id,
    "a struct of the union": lambda info, _graph, _tensor: info.context_binary_info_v1,
    "a graph's name": lambda _info, graph, _tensor: graph.graph_name,
    "a graph's inputs": lambda _info, graph, _tensor: graph.graph_inputs,
    "a tensor's name": lambda _info, _graph, tensor: tensor.name,
    "a tensor's dimensions": lambda _info, _graph, tensor: tensor.dimensions,
    "a tensor's size": lambda _info, _graph, tensor: tensor.nbytes,
    "a struct that was copied": lambda _info, _graph, tensor: copy.copy(tensor).name,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_memory_of_the_handle_ends_with_it(
    read: Callable[[BinaryInfo, GraphInfo, QnnTensor], object],
) -> None:
    """Reading a struct after `free` fails with 30000; in C it would read freed memory."""
    system = lpai.SystemContext.create()
    info = system.get_binary_info(binary())
    graph = info.graphs[0]
    tensor = graph.graph_inputs[0]
    read(info, graph, tensor)
    system.free()
    assert code_of(lambda: read(info, graph, tensor)) == (30000, "R16", "QnnSystemContext_free")
    for struct in (info, graph, tensor):
        assert "freed" in repr(struct)  # `repr` must not fail in a debugger


def test_a_deep_copy_outlives_the_handle() -> None:
    """A deep copy of a tensor stays valid after the system context is freed."""
    system = lpai.SystemContext.create()
    lent = system.get_binary_info(binary()).graphs[0].graph_inputs[0]
    kept = copy.deepcopy(lent)
    assert repr(lent).startswith(f"SystemTensor(id={lent.id}, name={lent.name!r}")
    system.free()
    (first, *_) = lpai.get_binary_info(binary())
    assert kept == first.graph_inputs[0]
    assert type(kept) is QnnTensor


def test_the_short_way_has_nothing_to_free() -> None:
    """The tensors of `get_binary_info` belong to the caller and need no free."""
    graphs = lpai.get_binary_info(binary())
    assert [type(tensor) for graph in graphs for tensor in graph.graph_inputs]
    assert {type(t) for graph in graphs for t in graph.graph_inputs} == {QnnTensor}


def test_tensors_of_a_freed_system_context_cannot_be_executed() -> None:
    """Executing with tensors of a freed system context fails with 30000; deep copies work."""
    backend = lpai.Backend.create()
    content = (Path(__file__).resolve().parents[2] / "examples" / "small_lpai.bin").read_bytes()
    context = lpai.Context.create_from_binary(backend, content, trusted=True)
    system = lpai.SystemContext.create()
    info = system.get_binary_info(content).graphs[0]
    graph = context.graph_retrieve(info.graph_name)
    need = graph.compiled.scratch_bytes
    scratch = lpai.Heap(MemType.DDR).allocate(need, 64)
    mem = lpai.Mem(MemType.DDR, need, scratch)
    graph.set_config([lpai.custom(GraphOption.SET_CFG_SCRATCH_MEM, mem)])
    graph.finalize()
    inputs, outputs = info.graph_inputs, info.graph_outputs
    kept = [copy.deepcopy(tensor) for tensor in inputs], [copy.deepcopy(one) for one in outputs]
    assert graph.execute(inputs, outputs) == 0
    system.free()
    assert code_of(lambda: graph.execute(inputs, outputs))[:2] == (30000, "R16")
    assert graph.execute(*kept) == 0
    context.free()


def test_a_damaged_binary_is_refused_as_by_the_short_way() -> None:
    """A damaged binary is refused with code 30010."""
    system = lpai.SystemContext.create()
    assert code_of(lambda: system.get_binary_info(b"nothing of the kind"))[0] == 30010


@pytest.mark.parametrize("version", [0, 4, -1, None, "1", 1.0])
def test_there_is_no_other_version(version: object) -> None:
    """A version other than 1, 2 or 3 raises UsageError."""
    with pytest.raises(UsageError, match="version must be 1, 2 or 3"):
        lpai.SystemContext.create(version=version)  # type: ignore[arg-type]
