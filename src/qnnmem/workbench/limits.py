"""Limits of the workbench: bytes, files, jobs, connections, seconds."""

from __future__ import annotations

# No ONNX file is larger, and logs of that size are read in bounded memory.
MAX_UPLOAD = 2 << 30
MAX_UPLOADS = 200  # files that are kept
MAX_UPLOADED = 8 << 30  # bytes of them together
MAX_COMING = 4 << 30  # bytes of those that are being uploaded, beside these
MAX_NAME = 200  # characters of a file's name; it is only shown

MAX_QUEUE = 32  # jobs that wait
WORKERS = 2
MAX_REQUEST = 64 << 10  # bytes of a request that is no upload

MAX_RESULTS = 1000
MAX_HISTORY = 1 << 30  # bytes of results as they are kept
MAX_MADE = 2 << 30  # bytes of the files that one job made

MAX_CONNECTIONS = 96
MAX_LISTENERS = 24  # pages that are told about jobs
MAX_HEADERS = 16 << 10
HEADER_S = 10.0  # for the head of a request
IDLE_S = 10.0  # between two pieces of a body
UPLOAD_S = 900.0  # for a whole upload

MIN_TOKEN = 16  # characters
