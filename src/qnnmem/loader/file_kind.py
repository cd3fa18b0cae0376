"""File kinds, detected from content, and the commands that read them.

A file name is not reliable: `.bin` can be a context binary, weights or noise, and a failed download
leaves a web page named `model.onnx`. So the first bytes decide the kind, and for archives the names
of their members.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from qnnmem.bounded_file import read_head, read_range, regular_size
from qnnmem.errors import LoadError, QnnMemError, Setting
from qnnmem.text import lazy_pattern

HEAD = 1 << 16  # bytes that are examined
_CHUNK = 1 << 20
_COMMAS = 3  # in the header of a buffer list: id, lower, upper and size

_EXPORT = "export the model with torch.onnx.export and pass the .onnx file"
_TENSORFLOW = "convert it with tf2onnx, or to TFLite with tf.lite.TFLiteConverter"
_SOURCE = "pass the ONNX or TFLite model that it was converted from"
_NO_LOG = "unpack it and pass a log"
_NO_LIBRARY = f"for a compiled QNN model, {_SOURCE}"
_TRUSTED = "only QNN model libraries can be read"
_BINARY = "the file is output of qnnmem inspect or of the vendor's tool; pass the binary itself"
_COMPILED = ("fit", "footprint", "qmem", "sweep")
_HTP_VERBS = ("inspect", "footprint", "qmem", "fit", "place")


class KindOfFile(NamedTuple):
    """A kind of file: its name, a description, the commands that read it, and advice."""

    name: str
    words: str
    verbs: tuple[str, ...] = ()
    cure: str = ""

    @property
    def readers(self) -> str:
        """Clause that names the commands that read this kind, or gives advice."""
        if not self.verbs:
            return f"no command reads it: {self.cure}"
        *others, last = (f"qnnmem {verb}" for verb in self.verbs)
        listed = f"{', '.join(others)} and {last} read it" if others else f"{last} reads it"
        return f"{listed}; {self.cure}" if self.cure else listed


_TABLE = (
    KindOfFile("onnx", "an ONNX model", ("plan", "prepare", *_COMPILED)),
    KindOfFile("epcontext", "an ONNX model with a compiled context (EPContext)", _HTP_VERBS),
    KindOfFile("tflite", "a TFLite model", ("plan", "prepare")),
    KindOfFile("eaix", "an eAI report", ("plan", "prepare")),
    KindOfFile("csv", "a list of buffers (CSV)", ("plan", "prepare")),
    KindOfFile("lpai", "an LPAI context binary of qnnmem", ("inspect", "place", "net-run")),
    KindOfFile("htp", "a QNN context binary", _HTP_VERBS),
    KindOfFile("dlc", "a DLC", ("plan", "prepare", "inspect", *_COMPILED)),
    # An eAI report without its format field looks like an HTP config file: both list graphs.
    KindOfFile("graphs", "JSON that lists graphs", ("plan", "prepare", "lint")),
    KindOfFile("contents", "the contents of a context binary (JSON)", (), _BINARY),
    KindOfFile("config", "a QNN config file (JSON)", ("lint",)),
    KindOfFile("result", "a result of qnnmem (JSON)", ("report", "diff")),
    KindOfFile("trace", "a trace of qnnmem watch", ("report", "watch")),
    KindOfFile("json", "JSON", ("lint", "doctor")),
    KindOfFile("packed", "compressed data", ("doctor",), _NO_LOG),
    KindOfFile("text", "text", ("doctor",)),
    KindOfFile("npy", "a NumPy array", (), "the file contains inputs of a model; pass the model"),
    KindOfFile("npz", "NumPy arrays", (), "the file contains inputs of a model; pass the model"),
    KindOfFile("elf", "a shared library or a program (ELF)", ("plan", "prepare"), _TRUSTED),
    KindOfFile("pe", "a library or a program for Windows", (), _NO_LIBRARY),
    KindOfFile("macho", "a library or a program for macOS", (), _NO_LIBRARY),
    KindOfFile("safetensors", "weights without a graph (safetensors)", (), _EXPORT),
    KindOfFile("gguf", "weights for llama.cpp (GGUF)", (), "export the model itself to ONNX"),
    KindOfFile("pytorch", "a PyTorch file", (), _EXPORT),
    KindOfFile("pt2", "a program exported by PyTorch", (), _EXPORT),
    KindOfFile("pte", "an ExecuTorch program", _HTP_VERBS),
    KindOfFile("litert", "a TFLite model compiled for an NPU", _HTP_VERBS),
    KindOfFile("litertlm", "a LiteRT-LM file", _HTP_VERBS),
    KindOfFile("genie", "a Genie bundle", (*_HTP_VERBS, "lint", "doctor")),
    KindOfFile("genai", "a folder of ONNX Runtime GenAI", (*_HTP_VERBS, "lint", "doctor")),
    KindOfFile("keras", "a Keras or HDF5 file", (), _TENSORFLOW),
    KindOfFile("saved_model", "a TensorFlow SavedModel", (), _TENSORFLOW),
    KindOfFile("graphdef", "a TensorFlow graph", (), _TENSORFLOW),
    KindOfFile("ort", "a model in ONNX Runtime's own format", (), "pass the .onnx file instead"),
    KindOfFile("openvino", "an OpenVINO model", (), "pass the model that it was converted from"),
    KindOfFile("coreml", "a Core ML model", (), "pass the model that it was converted from"),
    KindOfFile("xml", "XML", (), "pass a model, a context binary or a log"),
    KindOfFile("lfs", "a Git LFS pointer, not the file itself", (), "fetch it with git lfs pull"),
    KindOfFile("html", "a web page", (), "download the file itself, not the page"),
    KindOfFile("task", "a MediaPipe archive of TFLite models", _HTP_VERBS),
    KindOfFile("zip", "a zip archive", ("doctor", *_HTP_VERBS)),
    KindOfFile("tar", "a tar archive", ("doctor",), _NO_LOG),
    KindOfFile("image", "an image", (), "pass a model, a context binary or a log"),
    KindOfFile("pdf", "a PDF document", (), "pass a model, a context binary or a log"),
    KindOfFile("binary", "binary data of unknown type", (), "pass the file that it was made from"),
    KindOfFile("empty", "empty", (), "save or download the file again"),
)
KINDS = {kind.name: kind for kind in _TABLE}
# Kinds of files and folders that contain context binaries; archives count only if they are named
# explicitly.
ARCHIVES = ("zip", "task")
IN_FOLDERS = ("pte", "litert", "litertlm")
CARRIERS = (*IN_FOLDERS, "genie", "genai", *ARCHIVES)
# Config files that make a folder a bundle.
BUNDLES = {"genie_config.json": "genie", "genai_config.json": "genai"}

# First bytes that determine the kind.
_STARTS = (
    (b"\x89QMEM", "lpai"),
    (b"\0\0\0\2\0\0\0", "htp"),
    (b"LITERTLM", "litertlm"),
    (b"\x93NUMPY", "npy"),
    (b"\x7fELF", "elf"),
    (b"GGUF", "gguf"),
    (b"\x89HDF\r\n\x1a\n", "keras"),
    (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF8", "image"),
    (b"%PDF-", "pdf"),
    (b"\xcf\xfa\xed\xfe", "macho"),
    (b"\xca\xfe\xba\xbe", "macho"),
    (b"\x1f\x8b", "packed"),
    (b"\x28\xb5\x2f\xfd", "packed"),
    (b"\xfd7zXZ\x00", "packed"),
    (b"BZh", "packed"),
    (b"version https://git-lfs.", "lfs"),
)
# Flatbuffers have an identifier at byte 4.
_IDENTIFIERS = {b"TFL3": "tflite", b"ORTM": "ort"}
_PTE = lazy_pattern(rb"ET\d\d")
_DISPATCH = b"DISPATCH_OP"  # the operator that runs code compiled for an NPU
_ONNX = lazy_pattern(rb"\x08[\x01-\x20](?:[\x12\x1a\x22\x2a\x32\x3a\x42\x72]|\xa2\x01|$)")
_SAVED_MODEL = lazy_pattern(rb"\x08\x01\x12[\x80-\xff]{0,4}[\0-\x7f]\n")
_COREML = lazy_pattern(rb"\x08[\x02-\x20]\x12[\x80-\xff]{0,4}[\0-\x7f]\n")
_GRAPHDEF = lazy_pattern(
    rb"\n[\x80-\xff]{0,3}[\0-\x7f]\n[\x01-\x7f][\x20-\x7e]+\x12[\x01-\x40][A-Z]"
)
_PICKLE = lazy_pattern(rb"\x80[\x02-\x05](?:\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.|.{0,64}torch)", re.S)
_SAFETENSORS = lazy_pattern(rb"\{\s*\"")
_MEMBER = b"PK\x03\x04"  # before each member of a zip archive
_PADDED = 64  # bytes of padding allowed before the first member, for alignment
# Names inside zip archives, most specific first.
_MEMBERS = (
    (lazy_pattern(rb"dlc\.metadata|model\.params"), "dlc"),
    (lazy_pattern(rb"model\.weights\.h5"), "keras"),
    (lazy_pattern(rb"serialized_exported_program|archive_format|models/model\.json"), "pt2"),
    (lazy_pattern(rb"(?:^|/)data\.pkl|constants\.pkl"), "pytorch"),
    (lazy_pattern(rb"\.npy$"), "npz"),
    (lazy_pattern(rb"\.tflite$"), "task"),
)
_CONFIG = lazy_pattern(r'"(?:lpai_backend|lpai_graph|backend_extensions|context_configs)"\s*:')
_EAIX = lazy_pattern(r'"format"\s*:\s*"\s*eAI', re.IGNORECASE)
_CONTENTS = lazy_pattern(r'"(?:contextBlobVersion|contextBlobSize|backendApiVersion)"\s*:')
# A config file of these kinds represents its whole folder, which contains the binaries.
_GENIE = lazy_pattern(r'"ctx-bins"\s*:')
_GENAI = lazy_pattern(r'"model"\s*:\s*\{.*"decoder"\s*:\s*\{', re.DOTALL)
_GRAPHS = lazy_pattern(r'"graphs"\s*:\s*\[')
_TRACE = lazy_pattern(r'\{\s*"schema"\s*:\s*"qnnmem\.trace/')
# Results start with "schema", except for the JSON of `inspect`: it starts like the vendor tool's,
# and the fields of qnnmem are last.
_RESULT = lazy_pattern(r'\{\s*(?:"schema"\s*:\s*"qnnmem\.|"info"\s*:\s*\{\s*"backendId"\s*:)')
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TEXT_BYTES = 4096  # bytes that decide between text and binary data
_CONTROLS = bytes({*range(32), 127} - {7, 8, 9, 10, 11, 12, 13, 27})
_PRINTABLE = bytes({*range(32, 127), 9, 10, 13})


def check_kind(path: Path, verb: str, *, takes: tuple[str, ...] = (), said: str = "") -> None:
    """Raise LoadError if a command does not read files of this kind.

    The error names the kind and the commands that read it. `takes` replaces the kinds that the
    table lists for the command. `said` is the command's name in the error.
    """
    kind = kind_of_file(path)
    if kind.name not in (takes or kinds_for(verb)):
        raise wrong_kind(path, kind, f"which {said or f'qnnmem {verb}'} does not read")


def is_kind(path: Path, kinds: Collection[str]) -> bool:
    """Return whether a file can be read and is of one of these kinds."""
    try:
        return kind_of_file(path).name in kinds
    except QnnMemError:
        return False


def kinds_for(verb: str) -> tuple[str, ...]:
    """Return the kinds that a command reads."""
    return tuple(kind.name for kind in KINDS.values() if verb in kind.verbs)


def wrong_kind(path: Path | str, kind: KindOfFile, why: str) -> LoadError:
    """Return the error about a file of the wrong kind; `why` is a relative clause."""
    if kind.name == "empty":
        return LoadError(path, "is empty")
    return LoadError(path, f"is {kind.words}, {why}", cure=kind.readers)


def is_library(path: Path, *, trust: bool) -> bool:
    """Return whether a file is native code; raise LoadError for native code without `trust`.

    Reading the graphs of such a file executes its code.
    """
    kind = kind_of_file(path)
    if kind.name != "elf":
        return False
    if not trust:
        reason = (f"is {kind.words}, whose code is executed only with ", Setting("trust"))
        raise LoadError(path, reason, cure=kind.readers)
    return True


def kind_of_file(path: Path) -> KindOfFile:
    """Return the kind of a file or bundle folder."""
    if bundle := bundle_config(path):
        return KINDS[BUNDLES[bundle]]
    size = regular_size(path)
    kind = kind_of_bytes(read_head(path, HEAD))
    if kind.name == "tflite" and size > HEAD and _holds(path, size, _DISPATCH):
        return KINDS["litert"]
    return kind


def bundle_config(folder: Path) -> str:
    """Return the name of the config that makes a folder a bundle; empty if there is none."""
    try:
        return next((name for name in BUNDLES if (folder / name).is_file()), "")
    except (OSError, ValueError):  # a NUL byte in the name
        return ""


def _holds(path: Path, size: int, wanted: bytes) -> bool:
    """Return whether a large file contains these bytes anywhere after its head."""
    starts = range(HEAD - len(wanted), size, _CHUNK - len(wanted))
    return any(wanted in read_range(path, start, _CHUNK) for start in starts)


def kind_of_bytes(head: bytes) -> KindOfFile:
    """Return the kind of a file from its first bytes."""
    return KINDS[_by_start(head) or _by_structure(head) or _by_protobuf(head) or _by_text(head)]


def _by_start(head: bytes) -> str:
    if not head:
        return "empty"
    return next((name for start, name in _STARTS if head.startswith(start)), "")


def _by_structure(head: bytes) -> str:
    """Return the kind for formats without a fixed prefix; empty if none matches."""
    if head[4:8] in _IDENTIFIERS:
        name = _IDENTIFIERS[head[4:8]]
        return "litert" if name == "tflite" and _DISPATCH in head else name
    if head[4:6] == b"ET" and _PTE.match(head, 4):
        return "pte"
    if head.startswith(_MEMBER):
        return _archive(head)
    if head[257:262] == b"ustar":
        return "tar"
    if head.startswith(b"MZ") and b"PE\0\0" in head[:1024]:
        return "pe"
    size = int.from_bytes(head[:8], "little")
    if 2 <= size < 1 << 27 and _SAFETENSORS.match(head, 8):
        return "safetensors"
    return "pytorch" if head[:1] == b"\x80" and _PICKLE.match(head) else ""


def _archive(head: bytes) -> str:
    """Return the kind of a zip archive from the names of its members."""
    members = []
    start = 0
    while 0 <= start < len(head) - 30:
        length = int.from_bytes(head[start + 26 : start + 28], "little")
        members.append(head[start + 30 : start + 30 + length])
        start = head.find(_MEMBER, start + 30 + length)
    for pattern, kind in _MEMBERS:
        if any(map(pattern.search, members)):
            return kind
    return "zip"


def _by_protobuf(head: bytes) -> str:
    if head[:1] not in (b"\x08", b"\n"):  # a text: the patterns need not be compiled
        return ""
    if _SAVED_MODEL.match(head):
        return "saved_model"
    if _COREML.match(head):  # ONNX has the producer's name here, which begins with a letter
        return "coreml"
    if _ONNX.match(head):
        compiled = b"EPContext" in head and b"ep_cache_context" in head
        return "epcontext" if compiled else "onnx"
    return "graphdef" if _GRAPHDEF.match(head) else ""


def _by_text(head: bytes) -> str:
    """Return the kind of text, or "binary" if there are too many control characters."""
    if head.startswith(_UTF16):
        return "text"
    if not _is_text(head):
        start = head.find(_MEMBER, 0, _PADDED)
        return "binary" if start < 0 else _archive(head[start:])
    text = head.decode("utf-8-sig", "replace").lstrip()
    beginning = text[:512].lower()
    if beginning.startswith(("<!doctype html", "<html")):
        return "html"
    if beginning.startswith(("<?xml", "<net ")):
        return "openvino" if "<net " in beginning else "xml"
    if text.startswith("{"):
        return _object(text)
    line = text.split("\n", 1)[0]
    if line.count(",") < _COMMAS:  # most logs: skip the import of a reader
        return "text"
    from qnnmem.loader.csv import is_header

    return "csv" if is_header(line) else "text"


def _object(text: str) -> str:
    if _TRACE.match(text):
        return "trace"
    if _RESULT.match(text):
        return "result"
    if _CONFIG.search(text):
        return "config"
    if _EAIX.search(text):
        return "eaix"
    if _GENIE.search(text):
        return "genie"
    if '"context_length"' in text and _GENAI.search(text):
        return "genai"
    if _CONTENTS.search(text):
        return "contents"
    return "graphs" if _GRAPHS.search(text) else "json"


def _is_text(head: bytes) -> bool:
    head = head[:_TEXT_BYTES]
    if 10 * _count(head, _CONTROLS) > len(head):
        return False
    try:
        getincrementaldecoder("utf-8-sig")().decode(head)  # the last character may be truncated
    except UnicodeDecodeError:
        # Text in other code pages has few control characters, apart from NULs after a crash; noise
        # has many.
        controls = _count(head, _CONTROLS.replace(b"\0", b""))
        return 10 * _count(head, _PRINTABLE) > 3 * len(head) and 50 * controls <= len(head)
    return True


def _count(head: bytes, octets: bytes) -> int:
    return len(head) - len(head.translate(None, octets))
