"""A chain for HTP: beside each part its context binary, and what the library said about all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from qnnmem.fix.parts.manifest import describe_chain, part_models, write_files
from qnnmem.fix.parts.partition_htp import HtpParts
from qnnmem.results.chain import Chain, ChainBinary, HtpChain


def write_htp_chain(found: HtpParts, folder: Path, *, force: bool = False) -> Chain:
    """Write the parts, their context binaries and the manifest, all or none."""
    blobs = part_models(found.partition)
    binaries = [path.read_bytes() for path in found.binaries]
    chain = describe_chain(found.partition, blobs)
    chain = replace(chain, htp=describe_htp(found, binaries))
    write_files(chain, blobs, folder, binaries, force=force)
    return chain


def describe_htp(found: HtpParts, binaries: Sequence[bytes]) -> HtpChain:
    """What a manifest says about context binaries."""
    placed = found.residency
    sizes = [one.size for one in placed.contexts]
    return HtpChain(
        soc=found.soc.name,
        library=found.library,
        binaries=tuple(
            ChainBinary(
                file=f"part{number}.bin", sha256=hashlib.sha256(blob).hexdigest(), pd_bytes=size
            )
            for number, (blob, size) in enumerate(zip(binaries, sizes, strict=True), start=1)
        ),
        refused_part=found.refused or 0,
        domains=len(placed.given.domains),
        budget_bytes=placed.budget.value,
        resident_bytes=sum(sizes),
        in_turn_bytes=max(sizes),
    )
