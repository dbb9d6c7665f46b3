"""An engine's own log of requests: a first line with its settings, then a line a request with the engine's timestamps.

The form of the two vLLM runs that `validate` replays: `engine`, `kv_cache` and `hardware` in the header; `arrival_s`,
`first_token_s`, `last_token_s`, `prompt_tokens` and `output_tokens` in each row.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.catalog.hardware import named_hardware
from servesim.client.setup import known_model
from servesim.errors import InputError
from servesim.records import Outcome, Records, Run
from servesim.units import parse_count
from servesim.workload.requests import Requests


def read_engine_log(path: str, text: str) -> tuple[Run, dict[str, Any]]:
    """Return the run in the `text` of the log at `path`, and its server as options: what the header tells of it.

    Raises `InputError` with the line of what is no request.
    """
    lines = text.splitlines()
    header = json.loads(lines[0])
    engine, cache, hardware = (_object(header, key) for key in ("engine", "kv_cache", "hardware"))
    device = hardware.get("device_name", "")
    known: dict[str, Any] = {
        "model": known_model({"model": header.get("model")}),
        "hardware": _device_of(str(device)),
        "kv_blocks": cache.get("num_gpu_blocks"),
        "block_size": cache.get("block_size"),
        "gpu_memory_utilization": cache.get("gpu_memory_utilization"),
        **{
            key: engine.get(key)
            for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "tensor_parallel_size")
        },
    }
    known = {key: value for key, value in known.items() if value is not None}
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            sent_s, first_s, last_s = (float(row[key]) for key in ("arrival_s", "first_token_s", "last_token_s"))
            prompt, output = (parse_count(row[key], key) for key in ("prompt_tokens", "output_tokens"))
            if not (math.isfinite(sent_s) and sent_s <= first_s <= last_s < math.inf):
                raise ValueError("its times are no times, or in another order")
            rows.append((sent_s, first_s, last_s, prompt, output))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, InputError) as error:
            raise InputError(f"{path}:{number}: is no request of an engine log ({error})") from error
    return run_of_rows(rows), known


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under `key`, an empty one where there is none."""
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def run_of_rows(rows: Sequence[tuple[float, float, float, int, int]]) -> Run:
    """Return a measured run of (sent, first token, last token, prompt tokens, output tokens) rows, times in seconds."""
    rows = sorted(rows)
    requests, records, times = Requests(), Records(len(rows)), array("d")
    for index, (sent_s, first_s, last_s, prompt, output) in enumerate(rows):
        requests.prompt_tokens.append(prompt)
        requests.output_tokens.append(output)
        requests.arrival_s.append(sent_s)
        records.planned_s[index] = records.sent_s[index] = sent_s
        records.prompt_tokens[index], records.output_tokens[index] = prompt, output
        records.outcome[index] = Outcome.COMPLETED
        records.first[index] = len(times)
        times.append(first_s)
        if output > 1:
            times.append(last_s)
        records.last[index] = len(times) - 1
    return Run("measured", requests, records, times, {})


def _device_of(name: str) -> str | None:
    """Return the preset of a device as its driver names it: `NVIDIA GeForce RTX 4090` is rtx-4090-24gb."""
    words = re.sub(r"nvidia|geforce|amd|instinct|generation|blackwell|workstation|edition", " ", name.lower()).split()
    return named_hardware(" ".join(words))
