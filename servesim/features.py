"""What the parts of a server did that may be off: KV tiers, drafts, clients that come back. A run is read, not changed.

Each function returns the figures of one of them under the names of the JSON documents, None where it was off.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from servesim.records import Outcome, Run


def offload_figures(run: Run) -> dict[str, Any] | None:
    """Return the tiers below the device's cache; hit rates are shares of the tokens that were looked up.

    `recompute_avoided_tokens` came over a link instead of being computed again.
    """
    totals = run.engine
    if totals is None or not run.offload:
        return None
    block_size = run.config.get("block_size") or 0
    looked_up = totals.looked_up_tokens
    tiers = [
        {
            **tier,
            "size_bytes": None if tier["blocks"] is None else tier["blocks"] * tier["block_bytes"],
            "hit_rate": tier["fetched_blocks"] * block_size / looked_up if looked_up else None,
        }
        for tier in run.offload
    ]
    return {
        "tiers": tiers,
        "device_hit_rate": max(0, totals.hit_tokens - totals.fetched_tokens) / looked_up if looked_up else None,
        "moved_bytes": sum(tier["moved_bytes"] for tier in tiers),
        "recompute_avoided_tokens": totals.fetched_tokens,
    }


def speculation_figures(run: Run) -> dict[str, Any] | None:
    """Return how many drafted tokens became output, and the mean length that one verification added."""
    totals, drafts = run.engine, run.config.get("spec_tokens")
    if totals is None or not drafts:
        return None
    drafted, accepted = totals.drafted_tokens, totals.accepted_tokens
    return {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "accepted_fraction": accepted / drafted if drafted else None,
        "accepted_length": 1 + accepted * drafts / drafted if drafted else None,
    }


def overload_figures(run: Run) -> dict[str, Any] | None:
    """Return what became of every attempt, and the tokens computed for clients that had left.

    `attempts[k]` is {sent, completed, gave_up, unfinished} of attempt k + 1; what was sent and is none of these was
    sent again, so that the next attempt's `sent` is the rest. None where nobody came back and nothing was wasted.
    """
    records, totals = run.records, run.engine
    wasted = 0 if totals is None else totals.wasted_tokens
    if not records.attempts and not wasted:
        return None
    fates: dict[int, Counter[str]] = {}
    for index, outcome in enumerate(records.outcome):
        if outcome != Outcome.WITHHELD:
            fates.setdefault(records.attempts.get(index, 1), Counter())[_FATES[Outcome(outcome)]] += 1
    attempts = []
    left = sum(count.total() for count in fates.values())
    for number in range(1, max(fates, default=0) + 1):
        ended = fates.get(number, Counter())
        attempts.append({"sent": left, **{name: ended[name] for name in ("completed", "gave_up", "unfinished")}})
        left -= ended.total()
    return {
        "attempts": attempts,
        "wasted_tokens": wasted,
        "wasted_fraction": wasted / totals.computed_tokens if totals is not None and totals.computed_tokens else None,
    }


_FATES = {
    Outcome.COMPLETED: "completed",
    Outcome.FAILED: "gave_up",
    Outcome.REJECTED: "gave_up",
    Outcome.UNFINISHED: "unfinished",
}
