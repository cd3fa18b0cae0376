"""What the worker and its child program agree on besides frames."""

from __future__ import annotations

# The child writes this line, with the number of the request, when all of its log is written.
END_MARK = "[qnnmem] end of request"
MAX_FRAME = 256 << 20  # bytes of a request or a reply
