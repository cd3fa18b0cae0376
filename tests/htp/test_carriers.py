"""Files that carry context binaries: read in place, billed once, with checked claims."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from carrier_writer import (
    SM8650,
    SM8750,
    Delegate,
    Method,
    binary,
    epcontext,
    genie,
    kv_graph,
    litert,
    litertlm,
    pte,
    spec,
    wrapped,
)
from context_writer import example_graph

from qnnmem.errors import LoadError
from qnnmem.htp.carriers import is_carrier, opened
from qnnmem.htp.carriers.carrier_bill import context_of, facts_of, read_carrier
from qnnmem.htp.carriers.pte_file import write_pte
from qnnmem.htp.fit import Fit, fit_stored
from qnnmem.htp.log import CompileLog, PdEstimate
from qnnmem.htp.measure import cache_loads, stored_bill
from qnnmem.options.htp import PlaceOptions
from qnnmem.provenance import Sourced
from qnnmem.results.carrier import CarrierFacts
from qnnmem.results.footprint import Bill
from qnnmem.targets.socs import find_soc
from qnnmem.verbs.place import place_files

CONTEXT, BINARY = binary(example_graph("prefill"), example_graph("decode"))
OTHER = binary(example_graph("second", const=999))[1]


def written(folder: Path, name: str, data: bytes) -> Path:
    """Write a file."""
    path = folder / name
    path.write_bytes(data)
    return path


def facts(path: Path) -> CarrierFacts:
    """Return the facts about a carrier file."""
    with read_carrier(path) as read:
        return facts_of(read)


def own_bill(folder: Path, data: bytes = BINARY) -> Bill:
    """Return the bill of the binary alone."""
    return stored_bill(written(folder, "own.bin", data))


def fit_of(path: Path, *socs: str) -> Fit:
    """Return the verdict for one SoC."""
    fits = fit_stored(path, tuple(map(find_soc, socs)), {})
    assert fits is not None
    return fits[0]


def size_of(part: Sourced | None) -> int:
    """Return the number of a known part."""
    assert part is not None
    return part.value


def same_sums(whole: Bill, alone: Bill) -> bool:
    """True if two bills have the same numbers."""
    return (whole.parts, whole.total, whole.process_domain, whole.graphs) == (
        (alone.parts, alone.total, alone.process_domain, alone.graphs)
    )


@pytest.mark.parametrize("padding", [256, 20])
@pytest.mark.parametrize("is_inline", [False, True])
def test_a_program_has_the_bill_of_its_binary(
    padding: int, is_inline: bool, tmp_path: Path
) -> None:
    """A binary that two methods use, inline or in a segment, counts once in the bill."""
    blob = wrapped(BINARY, padding)
    methods = [Method(name, [Delegate(inline=is_inline)]) for name in ("prefill", "decode")]
    data = pte(methods, *([(), [blob]] if is_inline else [[blob]]))
    path = written(tmp_path, "m.pte", data)
    assert is_carrier(path)
    (one,) = facts(path).binaries
    assert (one.used_by, one.bytes) == (("prefill", "decode"), len(BINARY))
    assert data[one.offset : one.offset + one.bytes] == BINARY
    assert context_of(path) == CONTEXT
    assert same_sums(stored_bill(path), own_bill(tmp_path))


# ExecuTorch 1.5.1 made these files (`serialize_pte_binary`, with and without extracted
# delegates) from two contexts of `context_writer`; `option_to_flatbuffer` made the specs.
MADE_BY_EXECUTORCH = [
    Path(__file__).with_name(f"executorch_1_5_1_{where}.pte") for where in ("segments", "inline")
]


@pytest.mark.parametrize("path", MADE_BY_EXECUTORCH, ids=lambda path: path.stem)
def test_programs_of_executorch_are_read(path: Path) -> None:
    """The reader returns the shared contexts, planned buffers, constants and claims of a file."""
    found = facts(path)
    both = ("prefill_forward", "kv_forward")
    assert [(one.used_by, one.graphs) for one in found.binaries] == [(both, both), (both, both[:1])]
    assert [part.size.value for part in found.host] == [1024, 1024, 4]
    assert found.cpu_operators == ("aten::add",)
    assert ["XnnpackBackend" in part.why for part in found.unread] == [True]
    assert [claim.claimed for claim in found.broken] == ["max_sf_buf_size 4,096"]
    assert "get_max_context_len 128" in {claim.claimed for claim in found.claims}


def test_a_written_program_is_laid_out_as_executorch_does(tmp_path: Path) -> None:
    """`write_pte` makes each graph a method of the one binary, aligned as ExecuTorch does."""
    own, path = written(tmp_path, "own.bin", BINARY), tmp_path / "own.pte"
    write_pte(own, CONTEXT, path)
    found, data = facts(path), path.read_bytes()
    (one,) = found.binaries
    assert data[one.offset : one.offset + one.bytes] == BINARY
    assert one.offset % 4096 == 256
    assert (one.used_by, one.graphs) == (("prefill", "decode"),) * 2
    assert all(claim.holds for claim in found.claims)
    assert {claim.what for claim in found.claims} == {"SoC", "Hexagon", "VTCM"}
    assert [part.name for part in found.host] == [
        f"planned buffers of {name}" for name in one.graphs
    ]
    assert same_sums(stored_bill(path), own_bill(tmp_path))


def test_estimates_of_the_library_count_in_a_carrier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached estimate of the library gives the binary and its program the same process domain."""
    monkeypatch.setattr("qnnmem.htp.measure.cache_folder", lambda: tmp_path / "cache")
    own = written(tmp_path, "own.bin", BINARY)
    assert CONTEXT.soc_model is not None
    cache_loads([own], CONTEXT.soc_model, CompileLog("v", pd_estimates=(PdEstimate(1, 12345),)))
    alone = stored_bill(own).process_domain
    whole = stored_bill(written(tmp_path, "m.pte", pte([Method()], [wrapped(BINARY)])))
    assert alone is not None
    assert alone.high.value == 12345
    assert whole.process_domain == alone


def test_equal_contents_count_once(tmp_path: Path) -> None:
    """Two copies of a binary in one file are one context; a binary of equal size is another."""
    twin = BINARY[:-1] + bytes([BINARY[-1] ^ 1])
    methods = [Method(f"m{n}", [Delegate(n)]) for n in range(3)]
    path = written(
        tmp_path, "m.pte", pte(methods, [wrapped(one) for one in (BINARY, BINARY, twin)])
    )
    assert [one.used_by for one in facts(path).binaries] == [("m0", "m1"), ("m2",)]


def test_a_bill_of_several_adds_up(tmp_path: Path) -> None:
    """The bill sums the parts of distinct binaries, counts VTCM once and names the host side."""
    methods = [
        Method("a", [Delegate(0)], planned=(0, 100, 200), operators=["aten::add"]),
        Method("b", [Delegate(1)]),
    ]
    segments = [wrapped(BINARY), wrapped(OTHER), bytes(4096)]
    path = written(tmp_path, "m.pte", pte(methods, segments, constants=2))
    whole = stored_bill(path)
    each = [own_bill(tmp_path, data) for data in (BINARY, OTHER)]
    parts = dict(whole.named_parts)
    for name in ("weights", "IO", "op data", "spill/fill"):
        each_part = [size_of(dict(bill.named_parts).get(name)) for bill in each]
        assert size_of(parts[name]) == sum(each_part)
    assert size_of(whole.vtcm) == max(size_of(bill.vtcm) for bill in each)
    needs = [bill.process_domain for bill in (whole, *each)]
    highs = [need.high.value for need in needs if need is not None]
    assert highs[0] == sum(highs[1:])
    found = facts(path)
    assert [(part.name, part.size.value) for part in found.host] == [
        ("planned buffers of a", 300),
        ("constants", 4096),
    ]
    assert found.cpu_operators == ("aten::add",)


def test_claims_are_checked(tmp_path: Path) -> None:
    """The claims of a compile spec are checked against the binary; a false claim never fits."""
    good, wrong = spec(SM8650), spec(SM8750, most_spill=1)
    data = binary(example_graph("g", spill_fill=4096))[1]
    answers = {}
    for name, given in (("good", good), ("wrong", wrong)):
        methods = [Method("forward", [Delegate(spec=given)])]
        path = written(tmp_path, f"{name}.pte", pte(methods, [wrapped(data)]))
        held = {claim.what: claim.holds for claim in facts(path).claims}
        fit = fit_of(path)
        answers[name] = held, fit.fits
    assert answers["good"] == ({"SoC": True, "Hexagon": True, "VTCM": True}, True)
    held, fits = answers["wrong"]
    assert held["SoC"] is False
    assert held["largest spill/fill"] is False
    assert fits is None


def test_the_context_length_is_checked_against_the_mask(tmp_path: Path) -> None:
    """The claimed context length is checked against the mask; the inputs give the cache size."""
    data = binary(kv_graph("decode", 1, 128), kv_graph("prefill", 32, 128))[1]
    for length, holds in ((128, True), (256, False)):
        methods = [Method(), Method("get_max_context_len", (), returns=length)]
        path = written(tmp_path, f"{length}.pte", pte(methods, [wrapped(data)]))
        found = facts(path)
        assert {claim.what: claim.holds for claim in found.claims}["context length"] is holds
        assert found.state is not None
        assert found.state.value == 4 * 8 * 127


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (wrapped(BINARY, magic=0x1234ABCD), "before August 2025"),
        (b"PK\x03\x04" + bytes(99), "a DLC"),
        (bytes(400), "unknown"),
    ],
)
def test_what_has_no_bill_is_named(blob: bytes, why: str, tmp_path: Path) -> None:
    """Old wrappers, DLCs and unknown data are parts without a bill, so the verdict stays open."""
    methods = [Method("a", [Delegate(0)]), Method("b", [Delegate(1)])]
    path = written(tmp_path, "m.pte", pte(methods, [wrapped(BINARY), blob]))
    (part,) = facts(path).unread
    assert why in part.why
    fit = fit_of(path)
    assert fit.fits is None
    assert why in str(fit.why)
    alone = written(tmp_path, "alone.pte", pte([Method()], [blob]))
    with pytest.raises(LoadError, match=why):
        stored_bill(alone)


@pytest.mark.parametrize(
    ("delegate", "why"),
    [
        (Delegate(1, id="XnnpackBackend"), "XnnpackBackend"),
        (Delegate(1, spec=spec(backend=4)), "LPAI"),
        (Delegate(1, spec=spec(backend=1)), "GPU"),
    ],
)
def test_other_delegates_are_named(delegate: Delegate, why: str, tmp_path: Path) -> None:
    """A delegate for another backend is named and has no bill."""
    methods = [Method("a", [Delegate(0), delegate])]
    path = written(tmp_path, "m.pte", pte(methods, [wrapped(BINARY), bytes(64)]))
    assert [why in part.why for part in facts(path).unread] == [True]


@pytest.mark.parametrize(
    "places",
    [{0: (1 << 40, 8)}, {0: (0, 1 << 60)}, {1: (64, 4096)}],
    ids=["outside", "too long", "overlap"],
)
def test_impossible_segments_are_refused(
    places: dict[int, tuple[int, int]], tmp_path: Path
) -> None:
    """A segment that overlaps another or passes the end of the file is refused."""
    data = pte([Method()], [wrapped(BINARY), bytes(8192)], places=places)
    with pytest.raises(LoadError, match=r"past the end|overlap"):
        facts(written(tmp_path, "m.pte", data))


def test_a_delegate_without_its_data_is_refused(tmp_path: Path) -> None:
    """A delegate index without data is refused as damage, in a segment or inline."""
    for number, delegate in enumerate((Delegate(7), Delegate(7, inline=True))):
        path = written(tmp_path, f"{number}.pte", pte([Method("m", [delegate])], [BINARY]))
        with pytest.raises(LoadError, match=r"segment 7|data 7"):
            facts(path)


def onnx_model(path: Path) -> Path:
    """Write a model that is not compiled."""
    return epcontext(path, {}, op_type="Relu")


@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes of Linux")
def test_a_gigabyte_is_read_in_place(tmp_path: Path) -> None:
    """Billing a program with a 2 GiB segment takes a few MiB of memory."""
    data = pte(
        [Method("a", [Delegate(0)])],
        [wrapped(BINARY), b""],
        constants=1,
        places={1: (len(BINARY) + 256, 2 << 30)},
    )
    total = struct.unpack_from("<Q", data, 32)[0]
    path = written(tmp_path, "m.pte", data[:32] + struct.pack("<Q", total + (2 << 30)) + data[40:])
    with path.open("r+b") as file:
        file.truncate(len(data) + (2 << 30))
    code = (
        "import sys; from pathlib import Path\n"
        "from qnnmem.htp.measure import stored_bill\n"
        "stored_bill(Path(sys.argv[1]))\n"
        # Not ru_maxrss: a child process inherits that value from its parent.
        "words = Path('/proc/self/status').read_text().split()\n"
        "print(words[words.index('VmHWM:') + 1])"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True)
    assert int(ran.stdout) < 200 << 10


def test_a_litert_model_counts_shared_bytecode_once(tmp_path: Path) -> None:
    """Two operators with the same range are one context; the SoC stamp is a checked claim."""
    uses = [("a", 0, len(BINARY)), ("b", 0, len(BINARY))]
    path = written(tmp_path, "m.tflite", litert(BINARY, uses))
    found = facts(path)
    assert [one.used_by for one in found.binaries] == [("a", "b")]
    assert [claim.holds for claim in found.claims] == [True]
    assert found.cpu_operators == ("ADD",)
    assert same_sums(stored_bill(path), own_bill(tmp_path))
    wrong = written(tmp_path, "w.tflite", litert(BINARY, model="SM8750"))
    assert [claim.holds for claim in facts(wrong).claims] == [False]


def test_bytecode_for_other_makers_has_no_bill(tmp_path: Path) -> None:
    """Bytecode that MediaTek compiled for the same operator has no bill."""
    found = facts(written(tmp_path, "m.tflite", litert(bytes(64), maker="MediaTek")))
    assert not found.binaries
    assert "MediaTek" in found.unread[0].why


def test_bytecode_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    """Bytecode offsets past the end of the file and partly overlapping ranges are refused."""
    for number, uses in enumerate(([("a", 0, 1 << 40)], [("a", 0, 400), ("b", 8, 400)])):
        path = written(tmp_path, f"{number}.tflite", litert(BINARY, uses))
        with pytest.raises(LoadError, match=r"past the end|overlap"):
            facts(path)


def test_the_models_of_a_litertlm_file_are_read(tmp_path: Path) -> None:
    """Offsets in a model of a LiteRT-LM file count from the start of the model's section."""
    path = written(tmp_path, "m.litertlm", litertlm([litert(BINARY), litert(OTHER)]))
    assert [one.graphs for one in facts(path).binaries] == [("prefill", "decode"), ("second",)]


def test_a_genie_bundle_is_one_bill(tmp_path: Path) -> None:
    """A Genie folder has one bill, with binaries in load order and the claims of both configs."""
    parts = {f"p{n}.bin": binary(kv_graph(f"g{n}", 1, 128, const=n))[1] for n in (1, 2)}
    folder = genie(tmp_path / "bundle", parts, length=128, spill=0)
    found = facts(folder)
    assert [one.name for one in found.binaries] == ["p1.bin", "p2.bin"]
    assert all(claim.holds for claim in found.claims)
    assert stored_bill(folder).total == stored_bill(folder / "genie_config.json").total
    wrong = facts(genie(tmp_path / "wrong", parts, length=4096, soc=69))
    assert {claim.what.split(" of ")[0] for claim in wrong.broken} == {"context length", "SoC"}


def test_a_shared_spill_fill_buffer_must_be_large_enough(tmp_path: Path) -> None:
    """A spill-fill-bufsize below the largest need is a broken claim."""
    parts = {f"{n}.bin": binary(example_graph("g", spill_fill=9000, const=n))[1] for n in (1, 2)}
    small = facts(genie(tmp_path / "small", parts, spill=100))
    assert [claim.what for claim in small.broken] == ["spill/fill buffer"]
    right = facts(genie(tmp_path / "right", parts, spill=9000))
    assert not right.broken
    assert size_of(right.shared_spill_fill) == 9000


def test_a_missing_binary_is_a_part_without_a_bill(tmp_path: Path) -> None:
    """A Genie bundle that lacks a shard has no verdict."""
    folder = genie(tmp_path / "bundle", {"a.bin": BINARY, "b.bin": OTHER})
    (folder / "b.bin").unlink()
    fit = fit_of(folder)
    assert fit.fits is None
    assert "no such file" in str(fit.why)


def test_names_that_lead_out_of_the_bundle_are_refused(tmp_path: Path) -> None:
    """A link in a bundle to a file outside the bundle is refused."""
    written(tmp_path, "out.bin", BINARY)
    folder = genie(tmp_path / "bundle", {"a.bin": BINARY})
    (folder / "link.bin").symlink_to(tmp_path / "out.bin")
    text = (folder / "genie_config.json").read_text()
    (folder / "genie_config.json").write_text(text.replace("a.bin", "link.bin"))
    with pytest.raises(LoadError, match="outside"):
        facts(folder)


def test_parts_for_different_socs_do_not_fit_together(tmp_path: Path) -> None:
    """A bundle with shards for different SoCs has no verdict, and the bill says why."""
    parts = {"a.bin": BINARY, "b.bin": binary(example_graph("g"), soc=SM8750)[1]}
    folder = genie(tmp_path / "bundle", parts)
    fit = fit_of(folder, "SM8650")
    assert fit.fits is None
    assert any("different SoCs" in trap.sentence for trap in stored_bill(folder).traps)


# --- Archives -------------------------------------------------------------------------------------


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a zip file."""
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_app_is_looked_into(method: int, tmp_path: Path) -> None:
    """Archive members are recognised by content, and each distinct context counts once."""
    model = pte([Method()], [wrapped(BINARY)])
    members = {"AndroidManifest.xml": b"\3\0\x08\0", "assets/a.dat": model, "assets/b.bin": BINARY}
    path = archive(tmp_path / "app.apk", members | {"assets/c.tflite": litert(OTHER)}, method)
    found = facts(path)
    assert [one.graphs for one in found.binaries] == [("prefill", "decode"), ("second",)]
    assert not found.unread
    assert stored_bill(path).total is not None


def test_a_bundle_in_an_archive_keeps_its_order(tmp_path: Path) -> None:
    """A Genie config inside an archive sets the load order, and its claims are checked."""
    folder = genie(tmp_path / "b", {"z.bin": BINARY, "a.bin": OTHER}, soc=69)
    members = {f"model/{one.name}": one.read_bytes() for one in sorted(folder.iterdir())}
    found = facts(archive(tmp_path / "b.zip", members))
    assert [one.name for one in found.binaries] == ["model/z.bin", "model/a.bin"]
    assert [claim.what for claim in found.broken] == ["SoC"]


def test_models_that_are_not_compiled_leave_the_answer_open(tmp_path: Path) -> None:
    """An archive with an uncompiled model has no verdict."""
    plain = onnx_model(tmp_path / "plain.onnx")
    path = archive(tmp_path / "a.zip", {"a.bin": BINARY, "m.onnx": plain.read_bytes()})
    fit = fit_of(path)
    assert fit.fits is None
    assert "m.onnx" in str(fit.why)


def test_claims_of_a_bundle_are_about_its_own_binaries(tmp_path: Path) -> None:
    """The wrong context length of one bundle in an archive does not affect another bundle."""
    members: dict[str, bytes] = {}
    for name, length in (("a", 128), ("b", 4096)):
        data = binary(kv_graph(name, 1, 128))[1]
        folder = genie(tmp_path / name, {f"{name}.bin": data}, length=length)
        members |= {f"{name}/{one.name}": one.read_bytes() for one in folder.iterdir()}
    found = facts(archive(tmp_path / "b.zip", members))
    assert [claim.what for claim in found.broken] == ["context length of 'b/b.bin'"]


def test_a_damaged_member_leaves_the_others(tmp_path: Path) -> None:
    """A damaged archive member is a part without a bill; the other members are read."""
    broken = pte([Method()], [wrapped(BINARY)])[:900]
    found = facts(archive(tmp_path / "a.zip", {"a.pte": broken, "b.bin": BINARY}))
    assert len(found.binaries) == 1
    assert "damaged" in found.unread[0].why


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A member that would unpack a thousandfold is a part without a bill."""
    bomb = BINARY + bytes(80 << 20)
    found = facts(archive(tmp_path / "a.zip", {"a.bin": BINARY, "bomb.bin": bomb}))
    assert len(found.binaries) == 1
    assert "not unpacked" in found.unread[0].why


def test_many_compressed_members_are_read(tmp_path: Path) -> None:
    """An archive may have more compressed members than the process may open files."""
    members = {f"m{n}.bin": binary(example_graph(f"g{n}"))[1] for n in range(120)}
    path = archive(tmp_path / "a.zip", members)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/dev/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, opened + 60), hard))
    try:
        assert len(facts(path).binaries) == 120
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_duplicates_and_overlaps_are_refused(tmp_path: Path) -> None:
    """An archive with duplicate or overlapping members is refused, because readers may disagree."""
    twice = archive(tmp_path / "d.zip", {"a.bin": BINARY, "b.bin": OTHER})
    twice.write_bytes(twice.read_bytes().replace(b"b.bin", b"a.bin"))
    with pytest.raises(LoadError, match="two members"):
        facts(tmp_path / "d.zip")
    path = archive(tmp_path / "o.zip", {"a.bin": BINARY, "b.bin": OTHER}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    second = data.rfind(b"PK\1\2")
    struct.pack_into("<I", data, second + 42, 10)
    with pytest.raises(LoadError, match=r"overlaps|damaged"):
        facts(written(tmp_path, "o2.zip", bytes(data)))


def test_an_archive_without_models_is_refused(tmp_path: Path) -> None:
    """An archive that holds only logs is refused."""
    with pytest.raises(LoadError, match="no QNN context binary"):
        facts(archive(tmp_path / "a.zip", {"run.log": b"failed\n"}))


def test_a_group_of_an_ai_pack_has_its_own_bill(tmp_path: Path) -> None:
    """Each SoC group of an AI pack has its own bill; the requested SoC selects the group."""
    large = binary(example_graph("g", const=50 << 20), soc=SM8750)[1]
    members = {
        "p/assets/model#group_SM8650/m.tflite": litert(BINARY),
        "p/assets/model#group_SM8750/m.tflite": litert(large, model="SM8750"),
    }
    path = archive(tmp_path / "a.aab", members)
    assert stored_bill(path).total == own_bill(tmp_path, large).total
    assert stored_bill(path, find_soc("SM8650")).total == own_bill(tmp_path).total


# --- Placement ------------------------------------------------------------------------------------


class Silent:
    """A progress listener that ignores everything."""

    def __call__(self, progress: object, /) -> None:
        """Ignore the progress."""

    def say(self, words: str, /) -> None:
        """Ignore the message."""

    def note(self, words: str, /) -> None:
        """Ignore the note."""


def test_placing_a_bundle_places_each_context(tmp_path: Path) -> None:
    """`place` arranges each binary of a folder; a part without a bill leaves the verdict open."""
    folder = genie(tmp_path / "bundle", {"a.bin": BINARY, "b.bin": OTHER})
    result = place_files([folder], PlaceOptions(), Silent())
    assert [Path(one.file).name for one in result.contexts] == ["bundle: a.bin", "bundle: b.bin"]
    assert result.answer == "fits"
    (folder / "b.bin").unlink()
    assert place_files([folder], PlaceOptions(), Silent()).answer == "cannot-tell"


def test_models_that_name_one_binary_are_one_context(tmp_path: Path) -> None:
    """Two EPContext models that share a binary are one context; the same file twice is two."""
    written(tmp_path, "c.bin", BINARY)
    node = {"embed_mode": 0, "ep_cache_context": b"c.bin"}
    pair = [epcontext(tmp_path / f"{name}.onnx", node) for name in ("prompt", "token")]
    assert len(place_files(pair, PlaceOptions(), Silent()).contexts) == 1
    assert len(place_files([pair[0], pair[0]], PlaceOptions(), Silent()).contexts) == 2


def test_a_genai_folder_is_one_bill(tmp_path: Path) -> None:
    """Stages of a GenAI folder that share a binary count it once; a CPU stage has no bill."""
    written(tmp_path, "c.bin", BINARY)
    for name in ("prompt", "token"):
        epcontext(tmp_path / f"{name}.onnx", {"embed_mode": 0, "ep_cache_context": b"c.bin"})
    onnx_model(tmp_path / "embed.onnx")
    stages = [{one: {"filename": f"{one}.onnx"}} for one in ("embed", "prompt", "token")]
    decoder = {"decoder": {"pipeline": stages}, "type": "decoder-pipeline", "context_length": 64}
    written(tmp_path, "genai_config.json", json.dumps({"model": decoder}).encode())
    found = facts(tmp_path)
    assert [one.used_by for one in found.binaries] == [("prompt", "token")]
    assert [part.name for part in found.unread] == ["embed.onnx"]


def test_a_carrier_is_read_while_it_is_open(tmp_path: Path) -> None:
    """The unpacked pieces of an archive are deleted when the block ends."""
    path = archive(tmp_path / "a.zip", {"a.bin": BINARY})
    with opened(path) as carrier:
        piece = carrier.payloads[0].piece
        assert b"".join(piece.chunks()) == BINARY
    assert not piece.file.exists()


def test_a_page_shows_what_a_file_carries(tmp_path: Path) -> None:
    """The page of a bill or an inspection shows contexts, claims and parts without a bill."""
    from qnnmem.report.page.sections import section_of
    from qnnmem.results.schema import encode
    from qnnmem.verbs.inspect import inspect_file

    methods = [Method("a<b>", [Delegate(0)]), Method("x", [Delegate(1, id="XnnpackBackend")])]
    path = written(tmp_path, "m.pte", pte(methods, [wrapped(BINARY), bytes(64)]))
    for text in (inspect_file(path, as_json=True)[0], encode(stored_bill(path))):
        shown = str(section_of(json.loads(text), "m.pte").body)
        assert "a&lt;b&gt;" in shown
        assert "XnnpackBackend" in shown
        assert "soc_model 57" in shown


def test_shared_weights_have_room_for_each_graph(tmp_path: Path) -> None:
    """The bytes that the library reserved for shared contexts lie in the range of the bill."""
    mib, shared = 1 << 20, 16_846_848
    for reserved, graphs in (
        (36_030_208, ((0, 16_384, 21_248, 0, 0), (0, 262_144, 25_600, 0, 0))),
        (40_236_800, ((131_328, 16_384, 22_528, 0, 0), (131_328, 262_144, 36_608, 0, 0))),
        (
            569_297_152,
            (
                (131_072, 524_288, 61_696, 0, 0),
                (135_168, 24_576_000, 11_629_056, 303_304_192, 186_253_312),
            ),
        ),
    ):
        made = [
            example_graph(
                f"g{number}",
                **dict(
                    zip(
                        ("const", "io", "op_data", "ddr_tensors", "spill_fill"), sizes, strict=False
                    )
                ),
                shared_weights=shared,
                vtcm=4 * mib,
            )
            for number, sizes in enumerate(graphs)
        ]
        need = own_bill(tmp_path, binary(*made)[1]).process_domain
        assert need is not None
        assert need.low.value <= reserved <= need.high.value
