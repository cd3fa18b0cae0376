"""What the worker and its child program agree on besides frames."""

from __future__ import annotations

OWN_MARK = "[qnnmem]"  # begins the lines of a log that are not the library's
# The child writes this line, with the number of the request, when all of its log is written.
END_MARK = f"{OWN_MARK} end of request"
MAX_FRAME = 256 << 20  # bytes of a request or a reply
