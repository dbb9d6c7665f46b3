"""Documents of what is known: a trace, models, devices."""

from __future__ import annotations

from servesim.report.schemas.answers import FITTED
from servesim.report.schemas.vocabulary import Many, Maybe

DEVICE_FIELDS = {
    "name": "text",
    "base?": "text: the preset that it came from",
    "memory_gib": "number",
    "bandwidth_gb_s": "number",
    "tflops": "number: dense 16-bit",
    "fp8_tflops": "number|null: null where it has no such units",
    "reserve_gib": "number",
    "mfu": "number: share of the arithmetic that is reached",
    "mbu": "number: share of the bandwidth that is reached",
    "overhead_ms": "number: of a step",
    "bus_gb_s": "number|null: between devices, one way",
    "peak_w": "number|null",
    "idle_w": "number|null",
    "power_source": "text",
    "kind": "text: gpu, unified or cpu",
    "source": "text",
    "date": "text",
    "detailed": Maybe(Many("number: a parameter of --cost-model detailed")),
    "fitted": "text: how the figures came about",
    "fitted_for": "text: the cost model that they were fitted for",
    "note": "text",
}

DEVICE = {**DEVICE_FIELDS, "provenance?": {"files": ["text"], **FITTED}}

HARDWARE = {"devices": [{"schema": "text", **DEVICE_FIELDS}]}

MODELS = {
    "models?": [
        {
            "name": "text",
            "params": "integer",
            "active_params": "integer: of one token",
            "attention": [
                {
                    "layers": "integer",
                    "kv_heads": "integer",
                    "head_dim": "integer",
                    "value_dim": "integer|null",
                    "latent_dim": "integer|null",
                    "index_bytes": "integer|null",
                    "window": "integer|null: tokens that it looks back",
                    "state_bytes": "integer|null",
                    "idle": "flag",
                }
            ],
            "heads": "integer",
            "hidden": "integer",
            "intermediate": "integer",
            "mlp_layers": "integer|null",
            "gated": "flag",
            "vocab": "integer",
            "tied_embeddings": "flag",
            "experts": Maybe(
                {
                    "layers": "integer",
                    "count": "integer",
                    "top_k": "integer",
                    "intermediate": "integer",
                    "shared": "integer",
                    "shared_intermediate": "integer|null",
                }
            ),
            "weight_dtype": "text",
            "kept_params": "integer: that quantisation leaves as they are",
            "kept_dtype": "text",
            "file_bytes": "integer|null",
            "kv_dtype": "text",
            "source": "text",
            "date": "text",
            "compute_params": "integer",
            "layers": "integer",
            "parts": Many("integer: parameters"),
            "weights_bytes": "integer",
            "kv_bytes_per_token": "integer|null: null where it depends on the length",
            "kv_bytes_of_4096_tokens": "integer",
        }
    ],
    "formats?": [
        {
            "name": "text",
            "bits": "number: of a weight, scales included",
            "covers": "text",
            "compute": "text",
            "source": "text",
        }
    ],
}

SCHEMAS_THERE_ARE = {
    "schemas": [
        {
            "name": "text",
            "id": "text: as in a document's schema",
            "about": "text",
            "lines": "flag: of one line of a file",
        }
    ]
}
