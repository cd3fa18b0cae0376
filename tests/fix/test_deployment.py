"""The needs of all parts together match a naive simulation of the whole run."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy
import onnx
import pytest
from command_line import exit_code, run
from naive_chain import simulate
from onnx import TensorProto, helper, numpy_helper
from seeds import share

from qnnmem.fix.lpai import deployed
from qnnmem.fix.parts.deployment import Arrangement, Deployment, PartNeed, chosen, deployments
from qnnmem.fix.parts.op_sequence import read_sequence
from qnnmem.fix.parts.partition import plan_part
from qnnmem.fix.parts.parts_remedy import parts_at
from qnnmem.planner import PoolOptions

ROOT = Path(__file__).parents[2]
_SHAPES = 4096  # bytes of constants that only state shapes, which the planner does not store


def random_net(seed: int, path: Path) -> Path:
    """Write a random net of products, sums and activations with shared weights and tensors."""
    random = Random(seed)  # noqa: S311  a seed is wanted
    values = numpy.random.default_rng(seed)
    width = random.choice((16, 40, 64))
    inputs = [f"x{n}" for n in range(random.randint(1, 3))]
    weights = [f"w{n}" for n in range(random.randint(1, 3))]
    known, nodes = list(inputs), []
    for at in range(random.randint(5, 14)):
        kind = random.choice(("MatMul", "Add", "Relu", "Tanh", "Reshape"))
        # Most ops read the last tensor, so the net is deep.
        first = known[-1] if random.random() < 0.7 else random.choice(known)
        other = {"MatMul": [random.choice(weights)], "Add": [random.choice(known)]}.get(kind, [])
        other = ["shape"] if kind == "Reshape" else other
        nodes.append(helper.make_node(kind, [first, *other], [f"t{at}"], f"n{at}"))
        known.append(f"t{at}")
    made = [name for name in known if name not in inputs]
    outputs = list(dict.fromkeys((*random.sample(made, random.randint(0, 2)), made[-1])))
    info = helper.make_tensor_value_info
    stored = {name: values.normal(size=(width, width)).astype("float32") for name in weights}
    graph = helper.make_graph(
        nodes,
        "net",
        [info(name, TensorProto.FLOAT, [3, width]) for name in inputs],
        [info(name, TensorProto.FLOAT, [3, width]) for name in outputs],
        [
            *(numpy_helper.from_array(value, name) for name, value in stored.items()),
            numpy_helper.from_array(numpy.array([3, width], "int64"), "shape"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.parametrize("io", ["inside", "outside"])
@pytest.mark.parametrize("seed", range(30))
def test_a_chain_needs_what_a_simulated_run_needs(seed: int, io: str, tmp_path: Path) -> None:
    """Scratch, held tensors, repeated weights and the total match a simulated run."""
    sequence = read_sequence(random_net(seed, tmp_path / "net.onnx"))
    random = Random(seed)  # noqa: S311  a seed is wanted
    if len(sequence) < 3:
        pytest.skip("too short to cut")
    cuts = sorted(
        random.sample(range(1, len(sequence)), min(len(sequence) - 1, random.randint(1, 3)))
    )
    found = parts_at(sequence, [0, *cuts, len(sequence)])
    options = PoolOptions(io)
    plans = [plan_part(part, options) for part in found.parts]
    models = [onnx.ModelProto.FromString(blob) for blob in found.models()]
    whole = onnx.load(tmp_path / "net.onnx")
    for way in deployed(found, plans, options):
        resident = way.arrangement is Arrangement.RESIDENT
        naive = simulate(whole, models, inside=io == "inside", resident=resident)
        assert way.pools["io"] == naive.io
        shapes = 16 * len(models)  # shape constants of Reshape, which the planner does not store
        assert naive.constants - shapes <= way.pools["constants"] <= naive.constants
        # The plan may exceed the live bytes because of packing.
        gap = sum(plan.scratch_bytes - (plan.peak.size if plan.peak else 0) for plan in plans)
        assert naive.scratch <= way.pools["scratch"] <= naive.scratch + gap
        assert naive.total - shapes <= way.total <= naive.total + gap
        assert way.load_bytes == (0 if resident else way.weights_bytes) + way.moved_bytes


def part(**loaded: int) -> PartNeed:
    """Return an HTP need with 8 bytes of VTCM while the part runs."""
    spill = loaded.get("spill-fill", 0)
    return PartNeed(
        {**loaded, "total": loaded["ram"]},
        {"ram": 8, "total": 8},
        weights=loaded["weights"],
        held=5,
        alone=frozenset(("ram", "total")),
        spill_fill=spill,
    )


def arrangements(tmp_path: Path) -> tuple[Deployment, ...]:
    """Return the arrangements of two parts of 20 and 30 bytes with 4 and 6 bytes of spill/fill."""
    sequence = read_sequence(random_net(0, tmp_path / "net.onnx"))
    parts = parts_at(sequence, [0, 2, len(sequence)]).parts
    first = part(ram=20, weights=3, **{"spill-fill": 4})
    second = part(ram=30, weights=5, **{"spill-fill": 6})
    return deployments(sequence, parts, (first, second), 7)


def test_vtcm_counts_once_and_spill_fill_is_shared_or_not(tmp_path: Path) -> None:
    """Resident adds all parts and one VTCM, sharing one spill buffer, in turn the larger part."""
    resident, shared, in_turn = arrangements(tmp_path)
    assert resident.pools == {"ram": 58, "weights": 8, "spill-fill": 10, "total": 58}
    assert shared.pools == {"ram": 54, "weights": 8, "spill-fill": 6, "total": 54}
    assert in_turn.pools == {"ram": 43, "weights": 5, "spill-fill": 6, "total": 43}
    assert resident.repeated_bytes == 1
    assert in_turn.load_bytes == 8 + in_turn.moved_bytes


@pytest.mark.parametrize(
    ("limits", "arrangement"),
    [
        ({"ram": 58}, Arrangement.RESIDENT),
        ({"ram": 57}, Arrangement.SHARED),
        ({"ram": 53}, Arrangement.IN_TURN),
        ({"spill-fill": 9}, Arrangement.SHARED),
        ({"weights": 7}, Arrangement.IN_TURN),
    ],
)
def test_the_arrangement_that_meets_the_limits_is_chosen(
    limits: dict[str, int], arrangement: Arrangement, tmp_path: Path
) -> None:
    """The first arrangement that meets the limits is chosen, with resident preferred."""
    found = chosen(arrangements(tmp_path), limits)
    assert found.arrangement is arrangement
    assert not found.over(limits)


def test_a_pool_that_is_not_known_is_over_its_limit(tmp_path: Path) -> None:
    """A pool without a known need exceeds any limit."""
    assert arrangements(tmp_path)[0].over({"io": 10})


@pytest.mark.models
@pytest.mark.parametrize(
    ("name", "words", "fits"),
    share(
        [
            ("silero_v3", "--dim sequence=256 --budget scratch=5728", False),
            ("silero_v3", "--dim sequence=256 --budget scratch=5728 --io outside", None),
            ("silero_ov16k", "--budget constants=700K", True),
            ("silero_ov16k", "--budget scratch=4000 --io outside", None),
            ("silero_half", "--dim batch=1 --dim sequence=512 --budget tcm=900K", None),
            ("lk_embed", "--dim unk__314=1 --budget constants=500K", True),
            ("lk_embed", "--dim unk__314=1 --budget constants=500K,scratch=200K", None),
            ("dnsmos_v8", "--dim N=1 --budget constants=100K --time-limit 20", None),
            (
                "basicpitch",
                "--dim unk__749=1 --budget scratch=9M,constants=60K --time-limit 20",
                None,
            ),
        ],
        2,
    ),
)
def test_every_fit_of_a_real_model_holds_in_a_simulated_run(
    name: str, words: str, fits: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real model, the total that `fix` claims is enough for a simulated run."""
    model = ROOT / ".cache" / "models" / f"{name}.onnx"
    if not model.exists():
        pytest.skip(f"model {name} is not there")
    monkeypatch.chdir(tmp_path)
    done = run("fix", model, *words.split(), "-o", "out", "--json")
    assert exit_code(done) in (0, 1), done.stderr
    told = json.loads(done.stdout)
    assert fits is None or told["fits"] is fits
    found = told["deployment"]
    if not told["fits"] or found is None:
        return
    chain = json.loads(Path("out/chain.json").read_text())
    parts = [onnx.load(Path("out", one["file"])) for one in chain["parts"]]
    ends = [_borders(parts, chain[key]) for key in ("inputs", "outputs")]
    whole = helper.make_model(helper.make_graph([], "g", ends[0], ends[1]))
    inplace = any(step.get("inplace") for step in told["tried"][told["best"]]["steps"])
    scratches = [_planned(Path("out", one["file"]), words, inplace) for one in chain["parts"]]
    resident = found["arrangement"] == "resident"
    inside = "outside" not in words
    naive = simulate(whole, parts, inside=inside, resident=resident, scratches=scratches)
    assert (found["pools"]["scratch"], found["pools"]["io"]) == (naive.scratch, naive.io)
    assert abs(found["pools"]["constants"] - naive.constants) <= _SHAPES
    assert abs(found["total_bytes"] - naive.total) <= _SHAPES
    limits = dict(pair.split("=") for pair in words.split("--budget ")[1].split()[0].split(","))
    units = {"K": 1 << 10, "M": 1 << 20}
    for pool, text in limits.items():
        limit = int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
        assert found["pools"][pool] <= limit
    if name == "silero_ov16k":  # the text of the other models has the same form
        text = run("fix", model, *words.split(), "-o", "again").stdout
        assert f"{found['total_bytes']:,} bytes in total" in text.splitlines()[0]


def _planned(part: Path, words: str, inplace: bool) -> int:
    """Return the scratch of one part from the command `plan`."""
    options = ["--io", "outside"] if "outside" in words else []
    options += ["--inplace"] * inplace
    size: int = json.loads(run("plan", part, *options, "--json").stdout)["scratch_bytes"]
    return size


def _borders(parts: list[onnx.ModelProto], names: list[str]) -> list[onnx.ValueInfoProto]:
    known = {item.name: item for part in parts for item in (*part.graph.input, *part.graph.output)}
    return [known[name] for name in names]
