"""Documents that answer a question: what fits, which run was better, what binds, what to buy, which figures fit."""

from __future__ import annotations

from typing import Annotated

from servesim.report.calibration import Fit
from servesim.report.capacity import Capacity
from servesim.report.diagnosis import Diagnosis, TriedFix
from servesim.report.schemas.vocabulary import Many, Maybe, Part, fields_of

CAPACITY = fields_of(Capacity) | {"cost?": [Part("cost")]}

SIDE = {
    "label": "text",
    "command": "text",
    "source": "text",
    "partial": "flag",
    "completed": "number|null",
    "records": "flag: whether its requests are known, so that it has intervals",
}

INTERVAL = Maybe(["number|null"])

COMPARE = {
    "a": SIDE,
    "b": SIDE,
    "confidence": "number: of the intervals",
    "margin": "number: a share of A within which a difference is none",
    "notes": ["text"],
    "changed": Many("object: an option with its values in a and b"),
    "only_a": "object",
    "only_b": "object",
    "figures": [
        {
            "name": "text",
            "unit": "text",
            "better": "text|null: higher or lower",
            "a": "number|null",
            "b": "number|null",
            "difference": "number|null: b - a",
            "relative": "number|null: of a",
            "a_interval": INTERVAL,
            "b_interval": INTERVAL,
            "difference_interval": INTERVAL,
            "relative_interval": INTERVAL,
            "verdict": "text|null: better, worse, same or cannot tell",
            "reason": "text|null",
        }
    ],
    "gates": [
        {
            "gate": "text",
            "figure": "text",
            "kind": "text: relative or value",
            "above": "flag",
            "limit": "number",
            "result": "text: tripped, passed or cannot tell",
            "reason": "text",
        }
    ],
}

DIAGNOSE = fields_of(Diagnosis) | {"tried?": Annotated[TriedFix | None, "null where it could not be tried"]}

BINDS = Maybe(
    {
        "budget": "text",
        "waiting?": "number: share of the time in steps for which requests waited",
        "for_sequences?": "number",
        "for_step_tokens?": "number",
        "for_kv_blocks?": "number",
        "compute?": "number: share of the time in steps that arithmetic decides",
        "bandwidth?": "number",
        "told": "text",
    }
)

TRIAL = {
    "rate": "number",
    "met": "flag",
    "slo": [{"name": "text", "limit_ms": "number", "value_ms": "number|null", "met": "flag|null"}],
    "share_of_limit": "number|null",
    "output_tokens_per_s": "number|null",
    "mean_batch": "number|null",
    "kv_peak": "number|null",
    "preemptions": "integer|null",
    "prefix_hit_rate": "number|null",
    "failed": "integer",
}

RATES = Maybe(["number"])
BOUNDS = Maybe({"low": "number", "high": "number"})

OFFER = {
    "key": "text",
    "model": "text",
    "hardware": "text",
    "tensor_parallel_size": "integer",
    "disagg": "text|null",
    "replicas": "integer",
    "devices": "integer",
    "rate": "number|null: requests a second that it serves",
    "cost": "number|null: in cost_unit",
    "at": Maybe(Part("trial")),
}

PLAN = {
    "workload": {
        "requests": "integer|null",
        "prompt_tokens": "text|null",
        "output_tokens": "text|null",
        "trace": "text|null",
    },
    "slo": [{"name": "text", "metric": "text", "percentile": "number", "limit_ms": "number"}],
    "rate": "number|null: asked for",
    "cost_unit": "text",
    "search_seeds": ["integer"],
    "fresh_seeds": ["integer"],
    "candidates": [
        {
            **{name: shape for name, shape in OFFER.items() if name not in ("replicas", "cost", "rate", "at")},
            "estimate": "number|null: requests a second on paper",
            "rate": "number|null: requests a second of one unit, 0 or null: none",
            "next_rate": "number|null: the lowest that missed",
            "rates": RATES,
            "interval": BOUNDS,
            "cost": "number|null",
            "steps_back?": "integer|null",
            "finalist": "flag",
            "same_as": "text|null: the key of the first that did exactly the same",
            "cut": "text|null: why it was not searched further",
            "too_short": "flag|null",
            "missed": "text|null",
            "binds": BINDS,
            "at": Maybe(Part("trial")),
        }
    ],
    "front": [OFFER],
    "chosen": Maybe(
        {
            **OFFER,
            "limits": {
                "num_blocks": "integer",
                "block_size": "integer",
                "max_num_seqs": "integer",
                "max_num_batched_tokens": "integer",
                "prefix_caching": "flag",
            },
            "rates": RATES,
            "interval": BOUNDS,
            "binds": BINDS,
            "fresh": [{"seed": "integer", "met": "flag", "at": Part("trial")}],
            "steps_back?": "integer|null",
            "fleet": Maybe({"router": "text", "at": Part("trial")}),
            "flags": Many(["text: a command line"]),
        }
    ),
    "next": [
        {
            "for": "text",
            **{f"{name}?": shape for name, shape in OFFER.items()},
            "up_to?": "number",
            "then?": "text",
            "change?": "text",
            "knobs?": Many("text"),
        }
    ],
    "runs": "integer: simulations that it took",
}

CALIBRATE = fields_of(Fit)
FITTED = {name: CALIBRATE[name] for name in ("cost_model", "parameters", "points", "mean_error", "hints", "warnings")}
"""What a file of a fitted device says of its fit."""

VALIDATE = {
    "evidence": [
        {
            "name": "text",
            "about": "text",
            "claims": [{"what": "text", "value": "number|null", "bound": "number|null", "met": "flag"}],
            "tables": [{"title": "text", "columns": ["text"], "rows": ["list"]}],
            "notes": ["text"],
            "skipped": "text: why, empty where it was not",
        }
    ]
}
