"""Limits of the workbench: bytes, files, jobs, connections, seconds."""

from __future__ import annotations

# ONNX files have at most 2 GiB, and logs of any size are read in bounded memory.
MAX_UPLOAD = 2 << 30
MAX_UPLOADS = 200  # stored files
MAX_UPLOADED = 8 << 30  # bytes of all stored files
MAX_COMING = 4 << 30  # bytes of uploads in progress, in addition
MAX_NAME = 200  # characters of a file name, which is only shown

MAX_QUEUE = 32  # waiting jobs
WORKERS = 2
MAX_REQUEST = 64 << 10  # bytes of a request that is not an upload

MAX_RESULTS = 1000
MAX_HISTORY = 1 << 30  # bytes of stored results
MAX_MADE = 2 << 30  # bytes of the output files of one job

MAX_CONNECTIONS = 96
MAX_LISTENERS = 24  # pages that receive job events
MAX_HEADERS = 16 << 10
HEADER_S = 10.0  # seconds for the head of a request
IDLE_S = 10.0  # seconds between two pieces of a body
UPLOAD_S = 900.0  # seconds for a whole upload

MIN_TOKEN = 16  # characters
