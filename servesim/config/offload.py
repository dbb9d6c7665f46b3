"""KV tiers as they are given, sizes and links in text, and as one server has them: blocks and seconds.

`64GB+1TB` over `25GB/s+6GB/s` is 64 GB of host memory and 1 TB below it, each with a link of its own. A size is the
whole server's, shared by its devices; a link is one device's, and all devices of a server fetch at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.config.engine import TierConfig
from servesim.cost.memory import CapacityPlan
from servesim.errors import InputError
from servesim.units import parse_bandwidth, parse_bytes, shown

DEFAULT_OFFLOAD_LINK = "25GB/s"  # what host-to-device copies reach of the 31.5 GB/s of PCIe 4.0 x16
JOIN = "+"

_NAMES = ("host", "disk")


def _parts(parse: Callable[[str, str], float], what: str) -> Callable[[Any, str], str]:
    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise InputError(f"{name} is {shown(value)}, must be {what}")
        parts = [part.strip() for part in value.split(JOIN)]
        for part in parts:
            if not parse(part, name) > 0:
                raise InputError(f"{name} is {shown(value)}, must be above 0")
        return JOIN.join(parts)

    return check


sizes = _parts(parse_bytes, "a size, such as 64GB; those of further tiers after a +")
"""Check for the sizes of tiers, nearest first: `64GB` or `64GB+1TB`."""

links = _parts(parse_bandwidth, "a bandwidth, such as 25GB/s; those of further tiers after a +")
"""Check for the bandwidths of tiers: `25GB/s`, for all of them, or one for each."""


def tiers_of(kv_offload: str | None, offload_link: str | None, plan: CapacityPlan) -> tuple[TierConfig, ...]:
    """Return the tiers of a server whose cache is that of `plan`; none where no size is given.

    Raises `InputError` where links and tiers do not match, or a tier is too small for a block.
    """
    if kv_offload is None:
        return ()
    size_of = [parse_bytes(part, "kv_offload") for part in kv_offload.split(JOIN)]
    link_of = [parse_bandwidth(part, "offload_link") for part in (offload_link or DEFAULT_OFFLOAD_LINK).split(JOIN)]
    if len(link_of) == 1:
        link_of *= len(size_of)
    if len(link_of) != len(size_of):
        raise InputError(
            f"kv_offload has {len(size_of)} tiers and offload_link {len(link_of)} links, must have as many"
        )
    devices = plan.parallel.tensor * plan.parallel.pipeline
    whole_block_bytes = plan.block_bytes * devices
    tiers = []
    for place, (size_bytes, bytes_per_s) in enumerate(zip(size_of, link_of, strict=True)):
        blocks = size_bytes // whole_block_bytes
        if not blocks:
            raise InputError(
                f"kv_offload has a tier of {size_bytes:,} bytes, less than a block of {whole_block_bytes:,}"
            )
        name = _NAMES[place] if place < len(_NAMES) else f"tier {place + 1}"
        tiers.append(
            TierConfig(blocks=blocks, block_s=plan.block_bytes / bytes_per_s, block_bytes=whole_block_bytes, name=name)
        )
    return tuple(tiers)
