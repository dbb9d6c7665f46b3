"""Files of JSON lines: the saved run of `--save`, and the rows of a plan's shard."""

from __future__ import annotations

from typing import Any

from servesim.report.schemas.answers import BINDS
from servesim.report.schemas.figures import CLIENT, LINK, REPLICA, SCALING, SERVER, TIER, USAGE
from servesim.report.schemas.vocabulary import Either, Maybe, Part
from servesim.runs.columns import KINDS, LINE
from servesim.workload.requests import Column


def _shape(column: Column) -> Any:
    """Return what the value of a column is, as a schema describes it."""
    shape = KINDS[column.kind].json
    return f"{shape}: {column.about}" if column.about else shape


REQUEST: dict[str, Any] = {column.key + "?" * column.optional: _shape(column) for column in LINE}

RUN = Either(
    {
        "kind": ("header",),
        "schema": ("servesim.run/1",),
        "servesim": "text",
        "command": "text",
        "source": ("simulated", "measured"),
        "config": "object",
        "setup": "object",
    },
    {
        "kind": ("engine",),
        "steps": "integer",
        "scheduled": "integer: requests, summed over steps",
        "busy_s": "number",
        "num_blocks": "integer",
        "kv_peak_blocks": "integer",
        "kv_block_seconds": "number",
        "elapsed_s": "number",
        "preemptions": "integer",
        "evictions": "integer",
        "looked_up_tokens": "integer",
        "hit_tokens": "integer",
        "computed_tokens": "integer",
        "recomputed_tokens": "integer",
        "saved_tokens": "integer",
        "drafted_tokens?": "integer",
        "accepted_tokens?": "integer",
        "fetched_tokens?": "integer",
        "wasted_tokens?": "integer",
    },
    {"kind": ("facts",), "offload?": [TIER], "scaling?": SCALING, "usage?": USAGE},
    {"kind": ("replica",), **REPLICA},
    {"kind": ("link",), **LINK},
    {
        "kind": ("steps",),
        "from": "integer: number of the first step of the stretch",
        "end_s": ["number"],
        "decodes": ["integer"],
        "prefill_tokens": ["integer"],
        "kv_blocks": ["integer"],
        "starts": [["number: a step, and when it began after an idle time"]],
        "count?": ["integer"],
        "steps?": ["integer"],
    },
    {"kind": ("request", "warmup"), **REQUEST},
    {
        "kind": ("gauge",),
        "at_s": "number",
        "running": "integer",
        "waiting": "integer",
        "kv_blocks": "integer|null",
        "kv_fraction": "number|null",
        "preemptions": "integer",
        "output_tokens": "integer",
    },
    {
        "kind": ("footer",),
        "whole": "flag",
        "requests": "integer",
        "warnings": ["text"],
        "violations": ["text"],
        "setup?": "object",
        "client?": CLIENT,
        "server?": SERVER,
    },
)

SHARD = Either(
    {
        "kind": ("header",),
        "schema": ("servesim.plan-shard/1",),
        "servesim": "text",
        "config": "object",
        "plan": "text: digest of all that the rows depend on",
    },
    {
        "kind": ("edge",),
        "unit": "text",
        "candidate": "text",
        "seed": "integer",
        "impossible": "text|null",
        "estimate": "number|null",
        "rate": "number|null",
        "next_rate?": "number|null",
        "too_short?": "flag",
        "probes?": ["list: a rate, and what it came to"],
        "missed?": "text|null",
        "at?": Maybe(Part("trial")),
        "binds?": BINDS,
    },
)
