"""Documents with more than one run in them: grids and scans, searches, reports."""

from __future__ import annotations

from servesim.client.scan import Scan
from servesim.report.schemas.figures import SUMMARY
from servesim.report.schemas.vocabulary import Maybe, Part

ROW = {"swept": "object: the swept values of the row, which stand beside its summary as well", **SUMMARY}

SWEEP = {
    "rows": [ROW],
    "knee": "integer|null: the row with the most throughput per latency, counted from 0",
    "scan?": Scan,
    "stops_paying?": "integer|null: the size of the KV tiers from which more does not pay",
    "crossings?": [
        {
            "engines": "integer",
            "colocated_ttft_p95_ms": "number|null",
            "apart_ttft_p95_ms": "number|null",
            "bytes_per_s": "number|null: below it, colocated engines win",
            "worse_bytes_per_s": "number|null",
        }
    ],
}

FIND = {
    "found": {
        "searched": ("concurrency", "rate"),
        "concurrency?": "number|null: the highest that meets the objectives",
        "rate?": "number|null: the highest that meets the objectives",
        "next": "number|null: the lowest above it that was tried",
        "limit": ("slo", "client", "maximum", "probes"),
        "probes": [
            {
                "concurrency?": "number",
                "rate?": "number",
                "answer": ("met", "missed", "discarded"),
                "slo": [Part("slo")],
            }
        ],
    },
    "summary": Maybe(Part("summary")),
}

NAMED = {"name": "text", "path": "text", "command": "text", "partial": "flag", "config": "object"}

REPORT = {
    "title": "text",
    "runs": [{**NAMED, **SUMMARY}],
    "grids": [{**NAMED, "rows": ["object: as in the document that it was read from"], "knee": "integer|null"}],
}
