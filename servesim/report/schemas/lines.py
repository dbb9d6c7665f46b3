"""Files of JSON lines: the saved run of `--save`, and the rows of a plan's shard."""

from __future__ import annotations

from typing import Any, get_type_hints

from servesim.report.schemas.answers import BINDS
from servesim.report.schemas.bodies import CLIENT, SERVER, USAGE
from servesim.report.schemas.vocabulary import Either, Maybe, Part, fields_of
from servesim.runs.columns import KINDS, LINE
from servesim.runs.records import (
    TOTALS_SAID_WHEN_USED,
    EngineTotals,
    GaugeSample,
    LinkTotals,
    ReplicaTotals,
    ScalingTotals,
    TierTotals,
)
from servesim.workload.requests import Column


def _shape(column: Column) -> Any:
    """Return what the value of a column is, as a schema describes it."""
    shape = KINDS[column.kind].json
    return f"{shape}: {column.about}" if column.about else shape


REQUEST: dict[str, Any] = {column.key + "?" * column.optional: _shape(column) for column in LINE}

_ENGINE = get_type_hints(EngineTotals, include_extras=True)

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
        **{name: hint for name, hint in _ENGINE.items() if name not in TOTALS_SAID_WHEN_USED},
        **{f"{name}?": hint for name, hint in _ENGINE.items() if name in TOTALS_SAID_WHEN_USED},
    },
    {"kind": ("facts",), "offload?": [TierTotals], "scaling?": ScalingTotals, "usage?": USAGE},
    {"kind": ("replica",), **fields_of(ReplicaTotals)},
    {"kind": ("link",), **fields_of(LinkTotals)},
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
    {"kind": ("gauge",), **{name.rstrip("?"): hint for name, hint in fields_of(GaugeSample).items()}},
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
