"""Where a step's time goes, as text and as a JSON object: the share of each term of a cost model.

Of a plan: one decode step of a lone sequence, one of a full batch, one with a prompt in it. Of a run: all of its steps,
those that only decode and those with a prompt apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from servesim.cost.terms import TERMS, TermWatch, terms_of
from servesim.engine.server import Server
from servesim.units import format_number

PROMPT_TOKENS = 2048
FULL_BATCH = 256


@dataclass(slots=True, frozen=True, kw_only=True)
class CostShare:
    """Seconds of each term in the steps that `what` names."""

    what: str
    steps: int
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def plan_shares(server: Server, context: int | None = None) -> list[CostShare]:
    """Return the terms of three steps of a server: one sequence, as many as fit (or have a seat), and a prompt.

    `context` are the cached tokens of each sequence; without it, half of the plan's tokens per request.
    """
    cost, plan = server.cost(), server.plan
    each = max(1, plan.tokens_per_request // 2) if context is None else context
    batch = max(1, min(server.config.max_num_seqs, FULL_BATCH, plan.kv_tokens // max(each, 1)))
    prompt = min(PROMPT_TOKENS, server.config.max_num_batched_tokens - batch)
    wanted: list[tuple[str, int, int, list[tuple[int, int]]]] = [
        (f"a decode step of 1 sequence at {each:,} tokens", 1, each, []),
        (f"a decode step of {batch:,} sequences at {each:,} tokens", batch, batch * each, []),
    ]
    if prompt > 0:
        wanted.append((f"the same with {prompt:,} tokens of a prompt", batch, batch * each, [(prompt, prompt)]))
    shares = [
        CostShare(what=what, steps=1, seconds=terms_of(cost, sequences, tokens, chunks))
        for what, sequences, tokens, chunks in wanted
    ]
    return [share for share in shares if share.total_s > 0]


def run_shares(watch: TermWatch) -> list[CostShare]:
    """Return the terms of the steps of a run, those that only decode and those with a prompt apart."""
    shares = [
        CostShare(what="steps that only decode", steps=watch.decode_steps, seconds=watch.decode_s),
        CostShare(what="steps with a prompt in them", steps=watch.mixed_steps, seconds=watch.mixed_s),
    ]
    return [share for share in shares if share.steps and share.total_s > 0]


def cost_text(shares: Iterable[CostShare]) -> str:
    """Return a block for each of the shares, the largest term first; terms under a thousandth are left out."""
    blocks = []
    for share in shares:
        total, each = share.total_s, share.total_s / share.steps * 1e3
        if share.steps > 1:
            head = f"{share.steps:,} {share.what}, {format_number(total, 3)} s in all, {format_number(each, 3)} ms each"
        else:
            head = f"{share.what}, {format_number(each, 3)} ms"
        lines = [f"cost of {head}"]
        for name, seconds in sorted(share.seconds.items(), key=lambda term: -term[1]):
            if seconds >= 0.001 * total:
                told = f"{format_number(seconds / share.steps * 1e3, 3):>11} ms"
                lines.append(f"  {name:<11}{seconds / total:>7.1%}{told}   {TERMS.get(name, '')}".rstrip())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def cost_dict(shares: Iterable[CostShare]) -> list[dict[str, Any]]:
    """Return the shares as JSON objects: milliseconds of each term in a step, on average."""
    return [
        {
            "what": share.what,
            "steps": share.steps,
            "step_ms": share.total_s / share.steps * 1e3,
            "terms_ms": {name: seconds / share.steps * 1e3 for name, seconds in share.seconds.items()},
        }
        for share in shares
    ]
