"""Golden traces of vLLM's own scheduler: reading them, and turning a scenario into limits, rules and requests.

The format is told in fixtures/vllm-traces-README.md. Knows nothing of engines; `tests.vllm_replay` runs what is read.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.config.engine import RULES, EngineConfig, Rules
from servesim.errors import InputError
from servesim.workload.requests import OPEN_END, Content, Requests

KEYS = (
    "step",
    "arrived",
    "scheduled",
    "admitted",
    "resumed",
    "prefix",
    "preempted",
    "finished",
    "running",
    "waiting",
    "free_blocks",
    "free_blocks_at_schedule",
)
EMPTY: dict[str, Any] = {"scheduled": {}, "prefix": {}}  # absent means empty: these, or else a list

# From these versions on, what changed (the observed ranges are in the README of the traces): `Rules` of each range.
FIRST_VERSION, LAST_VERSION = (0, 14), (0, 33)
WHOLE_SEQUENCE_SINCE, KEYLESS_TO_FRONT_SINCE, SPARES_LONE_SINCE = (0, 19), (0, 24), (0, 31)
PRIORITY_CHANGED_SINCE = (0, 33)  # after preempting itself a request no longer ends the loop over running
STATISTICS_AT_ADMISSION_SINCE = (0, 27)  # before, a resumed request's counters tell something else


@dataclass(slots=True, frozen=True, kw_only=True)
class Trace:
    """One recorded scenario: what to run and what vLLM did at each step."""

    name: str
    config: EngineConfig
    ids: list[str]
    requests: Requests
    arrival_steps: list[int]
    steps: list[dict[str, Any]]
    prefix_of_resumed: bool


def read_traces(folder: Path) -> Iterator[Trace]:
    """Read all traces of a folder in order of name; raises InputError naming the file and line."""
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder" if folder.exists() else f"{folder}: no such folder")
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise InputError(f"{folder}: no *.jsonl file in it")
    for path in paths:
        yield read_trace(path)


def read_trace(path: Path) -> Trace:
    """Read one trace: a header, one line a step, and a summary that says that it is whole."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}:{number}: a JSON object is expected")
        lines.append(value)
    if len(lines) < 2 or "summary" not in lines[-1]:
        raise InputError(f"{path}: the trace is cut: its last line is not a summary")
    header, steps = lines[0], lines[1:-1]
    try:
        scenario, limits, version = header["scenario"], header["config"], version_of(header["vllm"])
        rows = scenario["requests"]
        numbers = {row["id"]: index for index, row in enumerate(rows)}
        if len(numbers) < len(rows):
            raise InputError("two requests have the same id")
        config = engine_config(limits, version)
        requests = requests_of(rows)
        arrival_steps = [int(row["arrival_step"]) for row in rows]
        expected = [normalised(step, numbers) for step in steps]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except KeyError as error:
        raise InputError(f"{path}: {error.args[0]!r} is missing or unknown") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: not a trace: {error}") from None
    return Trace(
        name=path.stem,
        config=config,
        ids=list(numbers),
        requests=requests,
        arrival_steps=arrival_steps,
        steps=expected,
        prefix_of_resumed=version >= STATISTICS_AT_ADMISSION_SINCE,
    )


def version_of(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise InputError(f"vllm is {text!r}, a version is expected")
    return int(match[1]), int(match[2])


def engine_config(limits: dict[str, Any], version: tuple[int, int]) -> EngineConfig:
    """Turn the limits that vLLM really used into servesim's; its null block is not usable."""
    if limits.get("num_lookahead_tokens"):
        raise InputError("num_lookahead_tokens is on, servesim has no speculative decoding")
    if limits["policy"] not in ("fcfs", "priority"):
        raise InputError(f"policy is {limits['policy']!r}, vLLM has fcfs and priority")
    return EngineConfig(
        num_blocks=limits["num_blocks"] - 1,
        block_size=limits["block_size"],
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=limits["max_num_batched_tokens"],
        max_model_len=limits["max_model_len"],
        prefix_caching=limits["enable_prefix_caching"],
        chunked_prefill=limits["enable_chunked_prefill"],
        async_scheduling=bool(limits.get("async_scheduling")),
        long_prefill_token_threshold=limits["long_prefill_token_threshold"],
        watermark_blocks=int((limits.get("watermark") or 0.0) * limits["num_blocks"]),
        reserve_full_isl=limits.get("scheduler_reserve_full_isl") is not False,
        policy=limits["policy"],
        rules=rules_for(version, limits),
    )


def rules_for(version: tuple[int, int], limits: dict[str, Any]) -> str:
    """Name the rules that agree with a vLLM version on every point that these limits bring into play."""
    shown = f"vLLM {version[0]}.{version[1]}"
    if not FIRST_VERSION <= version <= LAST_VERSION:
        raise InputError(f"{shown} is outside what the rules stand for, 0.14 to 0.33")
    if limits["policy"] == "priority" and version >= PRIORITY_CHANGED_SINCE:
        raise InputError(f"{shown} has rules of its own for policy priority")
    reserves = limits.get("scheduler_reserve_full_isl") is not False
    caches, threshold = limits["enable_prefix_caching"], limits["long_prefill_token_threshold"] > 0

    def in_play(rules: Rules) -> tuple[bool, bool, bool]:
        return (
            rules.whole_sequence_must_fit and reserves,
            rules.keyless_to_front and caches,
            rules.threshold_spares_single and threshold,
        )

    then = Rules(
        whole_sequence_must_fit=version >= WHOLE_SEQUENCE_SINCE,
        keyless_to_front=version >= KEYLESS_TO_FRONT_SINCE,
        threshold_spares_single=version >= SPARES_LONE_SINCE,
    )
    for name, rules in RULES.items():
        if in_play(rules) == in_play(then):
            return name
    raise InputError(f"{shown} has rules of its own under this config; the sets are {', '.join(RULES)}")


def requests_of(rows: list[dict[str, Any]]) -> Requests:
    """Build the requests; tokens are equal only where the scenario says so.

    A request that others follow has a stream for its own tokens, output too; what nobody can share stays its own.
    """
    requests = Requests()
    requests.ids, requests.content, requests.priority = [], [], array("q")
    by_id = {row["id"]: row for row in rows}
    followed = {row["follows"] for row in rows if row.get("follows") is not None}
    streams: dict[tuple[str, str], int] = {}

    def stream(kind: str, name: str) -> int:
        return streams.setdefault((kind, name), len(streams))

    def content_of(row: dict[str, Any], followers: tuple[str, ...] = ()) -> Content:
        name, segments = row["id"], []
        if name in followers:
            raise InputError(f"request {name!r} follows itself")
        if row.get("follows") is not None:
            parent = by_id[row["follows"]]
            planned = parent["prompt_tokens"] + parent["output_tokens"]
            segments = cut(content_of(parent, (*followers, name)), min(planned, row["prompt_tokens"]))
        elif row.get("prefix") is not None and row["prefix_tokens"] > 0:
            segments = [(stream("prefix", row["prefix"]), min(row["prefix_tokens"], row["prompt_tokens"]))]
        if name in followed:
            segments.append((stream("own", name), OPEN_END))
        return tuple(segments)

    for row in rows:
        for key, least in (("prompt_tokens", 1), ("output_tokens", 1), ("arrival_step", 0)):
            if type(row[key]) is not int or row[key] < least:
                raise InputError(f"request {row['id']!r}: {key} is {row[key]!r}, must be an integer of {least} or more")
        requests.ids.append(row["id"])
        requests.prompt_tokens.append(row["prompt_tokens"])
        requests.output_tokens.append(row["output_tokens"])
        requests.arrival_s.append(math.nan)
        requests.priority.append(row.get("priority") or 0)
    requests.content = [content_of(row) for row in rows]
    if not any(requests.content):
        requests.content = None
    return requests


def cut(content: Content, end: int) -> list[tuple[int, int]]:
    """Return the segments of the first `end` tokens."""
    segments, start = [], 0
    for stream, stop in content:
        if start < end:
            segments.append((stream, min(stop, end)))
        start = stop
    return segments


def normalised(step: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Return a step with every key present and indices for ids; raises KeyError for an unknown id."""

    def renumber(value: Any) -> Any:
        if isinstance(value, dict):
            return {numbers[name]: amount for name, amount in value.items()}
        if isinstance(value, list):
            return [numbers[name] for name in value]
        return value

    for key in ("step", "running", "waiting", "free_blocks", "free_blocks_at_schedule"):
        if key not in step:
            raise KeyError(key)
    return {key: renumber(step.get(key, EMPTY.get(key, []))) for key in KEYS}
