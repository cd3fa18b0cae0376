"""What every SARIF log of ours has in common: version, messages, URIs of files."""

from __future__ import annotations

import os
import re

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

# With the backslashes before it, which would otherwise take away the one that is added.
_BRACKET = re.compile(r"(\\*)([\[\]])")


def message(text: str) -> dict[str, str]:
    """A message that shows as it is: its braces are no placeholders, its brackets no links."""
    doubled = text.replace("{", "{{").replace("}", "}}")
    return {"text": _BRACKET.sub(r"\1\1\\\2", doubled)}


def uri(name: str) -> str:
    """A file's name as a URI reference; `stdin` for standard input."""
    from urllib.parse import quote

    if name == "-":
        return "stdin"
    name = name.removeprefix("file://")
    if "://" in name:
        quoted = quote(os.fsencode(name), safe=":/?#@!$&'()*+,;=%~")
        return re.sub("%(?![0-9A-Fa-f]{2})", "%25", quoted)
    data = os.fsencode(name.replace("\\", "/") if os.name == "nt" else name)
    quoted = quote(data, safe="/~")
    if os.path.isabs(name):  # noqa: PTH117 - a name is all there is
        return f"file://{'' if quoted.startswith('/') else '/'}{quoted}"
    return quoted
