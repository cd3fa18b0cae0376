"""What a line says about a failure, in any words."""

from __future__ import annotations

import time

import pytest
from search_engines import engine_named

from qnnmem.doctor.kb.knowledge import built_in
from qnnmem.doctor.logs.reading import FAILING, OURS, is_calm, names_qnn, read, says_well
from qnnmem.doctor.logs.search import ENGINES, VectorscanEngine, choose_engine


@pytest.mark.parametrize(
    ("text", "stage", "code"),
    [
        (b"QNN error 1002", "", 1002),
        (b"E/QnnDsp: graph finalize returned 0x3ea", "graph", 1002),
        (b"QnnContext_createFromBinary returned 1002", "context", 1002),
        (b"QnnGraph_execute ret 6004", "execute", 6004),
        (b"[ERROR] QNN returned status 0x8000040d", "", 0x8000040D),
        (b"QnnDevice_create failed: -1002", "init", 1002),
        (b"QnnMem_register: QNN_MEM_ERROR_MAPPING", "memreg", 8003),
        (b"qnn: QNN_STATUS_MEMORY_ALLOCATION_FAILED", "", 1002),
        (b"rpcmem_alloc failed: AEE_ENOMEMORY", "memreg", 2),
        (b"could not execute on HTP, rc=-12", "execute", -12),
        (b"     0.1ms [ ERROR ] graph prepare failed 12", "graph", 12),
        (b"11-16 10:00:00.1  12  12 E QnnDsp: something else entirely", "", None),
        (b"2026-11-15 21:40:53.365 [V:onnxruntime:, x.cc:5 Log] <E> graph failed", "graph", None),
    ],
)
def test_failures(text: bytes, stage: str, code: int | None) -> None:
    """A failure line gives the stage of its call and its code."""
    failure = read(text)
    assert failure is not None
    assert (failure.stage, failure.code) == (stage, code)
    low = text.lower()
    assert any(word in low for word in OURS), "or no engine hands the line over"
    assert any(word in low for word in FAILING)


@pytest.mark.parametrize(
    "text",
    [
        b"[INFO] QnnDsp: graph finalized without errors",
        b"QNN: finished with 0 errors",
        b"qnn-net-run: error code: 0",
        b"apps_std_fopen_fd done for libQnnHtpV79Skel.so error_code 0x0",
        b"QNN: registered the error handler",
        b"[INFO] qnn graph failed once",
        b"QnnDsp <I> graph failed",
        b"I/Qnn( 5): graph failed",
        b"windspeed sensor failed",
        b"skeleton animation failed",
        b"E CameraApp: frame dropped, error 5",
        b"QnnGraph_execute returned 0",
        b"QnnContext_create returned QNN_SUCCESS",
        b"[Qnn ExecuTorch]: Deserializing processed data for method mail with 1002 bytes",
        b"",
    ],
)
def test_lines_that_tell_of_none(text: bytes) -> None:
    """Calm levels, negated failures and failures of other programs are no failures."""
    assert read(text) is None


@pytest.mark.parametrize(
    "text",
    [
        b"std::bad_alloc while running qnn-context-binary-generator",
        b'avc: denied { ioctl } for path="/dev/fastrpc-cdsp" permissive=0',
        b"lpai: model binary 2.4MB does not fit TCM 1.94MB",
        b"LPAI graph finalize 6022",
        b"vtcm size 8MB requested not available on SM7325",
        b"QNN malloc of 4GB returned NULL",
        b"QNN HTP: no space left for weights",
        b"Genie  context binary is 2.1 GB > 2 GB mmap limit",
        b"Non-zero error code: 1002 from graphExecute",
        b"HTP hangs forever on second inference",
        b"my model does not load on the NPU",
        b"11-16 10:00:00.123  12  12 W audit: avc: denied { read } for name=adsprpc-smd",
    ],
)
def test_a_message_that_somebody_copied_tells_of_a_failure(text: bytes) -> None:
    """A short pasted message counts as a failure, even in calm words."""
    assert read(text, alone=True) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"Loaded 1002 tensors from context binary model.bin",
        b"QnnHtp: loaded weights in 1002 ms",
        b"QNN EP: partition has 1002 nodes",
        b"Graph 1002 finalized in 33 ms QNN HTP",
        b"load_tensors: HTP0 model buffer size =  1002 MiB",
        b"QNN: 0 errors, 0 failed",
        b"onnxruntime QNN: test passed, error count: 0",
        b"E QnnHtp: err 1002 ; retry succeeded, context created",
        b"Could not find libQnnHtpV73Skel.so in /data/app, trying next",
    ],
)
def test_numbers_and_what_was_mended_are_no_failures(text: bytes) -> None:
    """A number is a code only if a word says so; a recovered failure is none."""
    for alone in (False, True):
        assert read(text, alone) is None


@pytest.mark.parametrize(
    "text",
    [
        b"QNN graph 0 failed",
        b"qnn graph execute on core 0 failed",
        b"QNN SDK 2.31.0 failed to start",
        b"QNN: context could not be recovered, error 1002",
        b"htp: backend libQnnHtp.so failed, trying next: none left, abort",
        b"QnnGraph_finalize was not successful, 1002",
        b"qnn: expected QNN_SUCCESS, got 1002",
        b"RuntimeError: QNN gave nothing",
        b"W/QnnHtp: failed to map 1 GB: out of memory",
        "QNN couldn\N{RIGHT SINGLE QUOTATION MARK}t open it".encode(),
    ],
)
def test_words_of_success_are_looked_at_twice(text: bytes) -> None:
    """`0 failed` means success, but `core 0 failed` is a failure."""
    assert read(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"QNN unsupported ops: 0",
        b"QNN: no unsupported ops",
        b"qnn log level = ERROR",
        b"QNN quantization error 0.002",
        b"QNN FAILED 0 / PASSED 20",
        b"htp crash count: 0",
        b"QNN you can get more with it",
        b"I QnnHtp: no memory pressure, all graphs mapped",
    ],
)
def test_words_of_failure_may_name_something_else(text: bytes) -> None:
    """A failure word in a counter, a setting or a metric is no failure."""
    assert read(text) is None


def test_engines_hand_over_the_same_failing_lines() -> None:
    """Every engine reports a failing line, even if QNN word and failure word overlap."""
    knowledge = built_in()
    lines = (b"E/QNN: gone", b"rpcmem_alloc(25, 1, 1073741824) gave 0", b"qnnot found", b"<E>")
    for line in lines:
        text = b"x" * 50 + b"\n" + line + b"\n"
        for name in ENGINES:
            engine = engine_named(knowledge, name)
            found = [place[:2] for place in engine.lines(text, 0, len(text), engine.memory())]
            assert (51, 51 + len(line)) in found, (name, line)


def test_vectorscan_tells_of_a_line_once() -> None:
    """Vectorscan reports each failing line once, with or without a line end."""
    pytest.importorskip("hyperscan")
    engine = choose_engine(built_in(), 0, "hyperscan")
    assert isinstance(engine, VectorscanEngine)
    told = []
    database = engine._first
    log = b"failed: error 1002, could not\nfine\nfault\r\n\ntimeout, FAILED and failed"

    def note(_number: int, _start: int, end: int, _flags: int, _context: object) -> None:
        told.append(end)

    database.scan(log, match_event_handler=note)
    ends = [log.index(b"\nfine"), log.index(b"\r") + 1, len(log)]
    assert told == ends
    memory = engine.memory()
    spans = engine.lines(log, 0, len(log), memory)
    assert [log[low:high] for low, high, *_ in spans] == [
        b"failed: error 1002, could not",
        b"fault\r",
        b"timeout, FAILED and failed",
    ]
    memory.leave_out(b"fault\r", 0, 0, by_letters=True)
    assert engine.lines(log, 0, len(log), memory) == [spans[0], spans[2]]
    assert engine.lines(b"fine\n", 0, 5, memory) == []


@pytest.mark.parametrize("word", [b"libqnn", b"a.", b"aB", b"x/", b"1"])
def test_hostile_lines_cost_little(word: bytes) -> None:
    """A line ten times as long takes less than 60 times the time."""
    costs = []
    for times in (40, 400):
        start = time.process_time()
        for number in range(20):
            read(b"QNN failed %d " % number + word * times)
        costs.append(time.process_time() - start)
    assert costs[1] < 60 * costs[0] + 0.05


@pytest.mark.parametrize(
    "text",
    [
        b"INFO: [qnn_manager.cc:488] Adding shared library dir to path: /data/local/tmp/qnn",
        b"INFO: [magic_number_utils.cc:116] config[0]: magic_number=8, signature_prefix=null",
        b"INFO:root:Visiting: aten_add_tensor_7, aten.add.Tensor",
        b"[INFO] [Qnn ExecuTorch]: soc_model in soc_info: 57",
        b"[INFO] [Qnn ExecuTorch]: Skip qnn_graph_create, graph has already been composed.",
        b"05-04 11:02:33.120  8123  8140 I litert  : [a.cc:7] Verified signature 7 of test sig 0",
        b"2026-03-10 11:06:33.123 [V:onnxruntime:, qnn_execution_provider.cc:338 Run] User "
        b"specified option - share EP contexts across sessions: 1",
        b"WARNING: [qnn_manager.cc:414] SDK version is in [2.35.0, 2.37.0); RmsNorm OP validation "
        b"is bypassed.",
        b"      74.5ms [WARNING] share memory size(1073741824) is enough for inputs. "
        b"required=150528 bytes, graphIdx=0",
        b"[QNN] Auto-generated IO config saved to: model.json",
    ],
)
def test_what_is_told_calmly_is_no_failure_unless_it_says_so(text: bytes) -> None:
    """A line at a calm level is no failure, even if pasted alone."""
    for alone in (False, True):
        assert read(text, alone) is None


@pytest.mark.parametrize(
    "text",
    [
        b'E/QnnEp: EP Dynamic Option "burst" is not currently supported.',
        b"[ERROR] [Qnn ExecuTorch]: Found 12 providers, expected 1",
        b"[ERROR] QNN EP: Passed NULL options to CreateExecutionProviderFactory()",
        b"[ERROR] [Qnn ExecuTorch]: Selected signature keys must not be empty.",
    ],
)
def test_good_words_in_an_error_are_looked_at_twice(text: bytes) -> None:
    """Success words in an error line do not hide the failure."""
    assert read(text) is not None


def test_the_function_that_prints_is_no_word_of_the_message() -> None:
    """The printing function and folder names do not count as words of the message."""
    said = b" Failed to read the options of QNN"
    place = b"/src/qnn_graph.cc:262 static Status onnxruntime::qnn::Graph::Finalize(void*)"
    assert read(place + said) == read(said)
    assert read(b"QNN: /data/graph/context/a.txt failed") == read(b"QNN: a.txt failed")


PAIRS = (
    # level: info and debug are no failure, but a relayed error is
    (b"QnnDsp <E> graph failed", b"QnnDsp <I> graph failed"),
    (
        b"11-16 10:00:00.1  12  12 E QnnDsp: map failed",
        b"11-16 10:00:00.1  12  12 I QnnDsp: map failed",
    ),
    (b"V adsprpc : CDSP0:[DS]: QNN process failed", b"V adsprpc : QNN process failed once"),
    # negation
    (b"<E> error: QNN is out of memory", b"<I> no error: out of memory checks passed"),
    (b"QNN: 1 graph failed", b"QNN: 0 failed"),
    (b"qnn error code: 1002", b"qnn error code: 0"),
    (b"QNN memory allocation failures", b"QNN: 0 memory allocation failures"),
    (b"qnn graph failed with err 7", b"qnn graph finished with err 0 after 12 us"),
    # the later part of the line wins
    (b"QNN err 1002; retry failed", b"QNN err 1002; retry succeeded, context created"),
    (b"HTP map failed a second time", b"HTP map needed a second try, now mapped"),
    (b"qnn: libX.so not found, giving up", b"qnn: libX.so not found, trying next"),
)


@pytest.mark.parametrize(("failing", "calm"), PAIRS)
def test_pairs_of_lines(failing: bytes, calm: bytes) -> None:
    """Of two almost equal lines, one is a failure and the other is none."""
    assert read(failing, alone=True) is not None
    assert read(calm, alone=True) is None


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        (b"error 5005 in createfrombinary", True),
        (b"failed with error code 14001", True),
        (b"libqnnhtpv75skel.so", True),
        (b"27.6ms [ error ] unable to load model", True),
        (b"remoteproc2: crash detected in cdsp", True),
        (b"hello world\nthis is not a log", False),
        (b"rknpu: failed to commit job, ret: -110", False),
        (b"cuda failure 2: out of memory", False),
        (b"cma: cma_alloc: linux,cma: alloc failed, req-size: 9600 pages", False),
        (b"error code: 404", False),
    ],
)
def test_what_names_qnn(text: bytes, ours: bool) -> None:
    """A word, a tag, a library or a code of QNN makes a line belong to QNN."""
    assert names_qnn(text) is ours


@pytest.mark.parametrize(
    ("text", "well"),
    [
        (b"remoteproc2: remote processor is now up", True),
        (b"<I> Graph finalized in 12 ms", True),
        (b"<I> QnnGraph_finalize done. status 0x3ea", False),
        (b"all done, but 2 ops failed", False),
        (b"QnnContext_createFromBinary -> 1002, 14 handles are released", False),
        (b"14 handles are never released", False),
        (b"starting", False),
    ],
)
def test_what_says_well(text: bytes, well: bool) -> None:
    """A line is good news only without a code and without a failure word."""
    assert says_well(text) is well


def test_levels() -> None:
    """The level of a relayed message counts more than the level of the relay."""
    assert is_calm(b"I/Qnn( 5): graph failed")
    assert is_calm(b"11-16 10:00:00.1  12  12 D QnnDsp: x")
    assert not is_calm(b"2026-11-15 21:40:53.365 [V:onnxruntime:, x.cc:5 Log] <E> graph failed")
    assert not is_calm(b"E QnnDsp: x")
