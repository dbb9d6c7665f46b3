"""Does the arithmetic add up: what a server reports of its KV cache against what its model and device come to.

Each check is a sentence with both figures and whether they agree. What nobody reported is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from servesim.analysis.evidence import Evidence, number_of
from servesim.engine.server import Server
from servesim.units import GIB, format_bytes, format_gib

CLOSE = 0.05  # of a block count: what a server's profiling moves from start to start


@dataclass(frozen=True, slots=True)
class Check:
    """One sum; `agrees` is None where it only informs."""

    told: str
    agrees: bool | None


def checks(evidence: Evidence, facts: Mapping[str, str], server: Server | None) -> list[Check]:
    """Return every check that the figures at hand allow; `facts` are the server's own words on its cache."""
    return [*_own_words(facts), *_against_plan(facts, evidence, server), *_room(evidence)]


def _own_words(facts: Mapping[str, str]) -> Iterator[Check]:
    blocks, block_size, tokens = (
        number_of(facts, name) for name in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens")
    )
    if blocks and block_size and tokens:
        product = blocks * block_size
        yield Check(
            f"{blocks:,.0f} blocks x {block_size:,.0f} tokens = {product:,.0f}, the server says {tokens:,.0f} tokens "
            "(one block is vLLM's null block)",
            abs(product - tokens) <= block_size * 2,
        )


def _against_plan(facts: Mapping[str, str], evidence: Evidence, server: Server | None) -> Iterator[Check]:
    blocks = number_of(facts, "num_gpu_blocks")
    if server is None or not blocks or number_of(facts, "num_gpu_blocks_override"):
        return
    plan = server.plan
    block_bytes = (number_of(facts, "block_size") or plan.block_size) * plan.kv_bytes_per_token
    expected = plan.kv_cache_bytes // block_bytes
    agrees = abs(blocks - expected) <= CLOSE * expected
    told = (
        f"{plan.model.name} on {plan.hardware.name}: {format_gib(plan.kv_cache_bytes)} of KV cache / "
        f"{format_bytes(block_bytes)} a block = {expected:,.0f} blocks, the server says {blocks:,.0f}"
    )
    if not agrees:
        reserve = plan.budget_bytes - plan.device_weights_bytes - blocks * block_bytes
        if reserve >= 0:
            told += f"; a reserve of {reserve / GIB:.2f} GiB would explain it (--reserve-gib {reserve / GIB:.2f})"
        else:
            told += "; that is more than fits: check model, dtype, tensor parallelism and device"
    yield Check(told, agrees)


def _room(evidence: Evidence) -> Iterator[Check]:
    """Say how many requests the cache holds at once, against the seats."""
    tokens = evidence.kv_tokens
    if tokens is None or evidence.prompt_tokens is None or evidence.output_tokens is None:
        return
    each = evidence.prompt_tokens + evidence.output_tokens
    if each <= 0:
        return
    told = f"the cache holds {tokens:,} tokens / {each:,.0f} per request = {tokens / each:,.1f} requests at once"
    if evidence.max_num_seqs is not None:
        first = "the cache" if tokens / each < evidence.max_num_seqs else "the seats"
        told += f", there are {evidence.max_num_seqs:,} seats: {first} would run out first"
    yield Check(told, None)
