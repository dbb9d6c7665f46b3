"""The result of `vllm bench serve --save-detailed`, for whatever reads those: dashboards, plots, comparisons.

One JSON object a run and a line, as `--append-result` writes several; a row of a sweep has the figures without the
lists. The keys are vLLM's (vllm/benchmarks/serve.py, 0.32), the figures servesim's own: percentiles are nearest rank,
where vLLM interpolates. It has no date, so that the same run gives the same bytes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from servesim.report.input import Grid, ReportInput, ReportRun, number_at, swept_value
from servesim.runs.records import Outcome, Run
from servesim.summary.latency import LATENCIES, Completed

METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
"""vLLM's name of a latency -> servesim's."""

FIGURES = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}

Result = dict[str, Any]
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def vllm_bench(report: ReportInput) -> Iterator[str]:
    """Yield a line for each run, and for each row of the grids."""
    for named in report.runs:
        summary = named.summary.as_dict()
        yield _line({**_figures(named.run.config, summary), **_spread(named), **_peaks(named.run), **_lists(named.run)})
    for grid in report.grids:
        for row in grid.rows:
            yield _line(_figures(_config(grid, row), row))


def _line(result: Result) -> str:
    return _encode(result) + "\n"


def _config(grid: Grid, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**grid.config, **{key: swept_value(row, key) for key in grid.swept}}


def _figures(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Result:
    rate, model = config.get("rate"), config.get("model")
    offered = number_at(summary, "requests", "offered")
    completed = number_at(summary, "requests", "completed")
    return {
        "backend": config.get("api") or "servesim",
        "label": summary.get("source"),
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": _whole(offered),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": config.get("burstiness") or 1.0,
        "max_concurrency": config.get("concurrency"),
        "duration": number_at(summary, "duration_s"),
        "completed": _whole(completed),
        "failed": None if offered is None or completed is None else int(offered - completed),
        "total_input_tokens": _whole(number_at(summary, "tokens", "prompt")),
        "total_output_tokens": _whole(number_at(summary, "tokens", "output")),
        "request_throughput": number_at(summary, "throughput", "requests_per_s"),
        "request_goodput": number_at(summary, "goodput", "requests_per_s"),
        "output_throughput": number_at(summary, "throughput", "output_tokens_per_s"),
        "total_token_throughput": number_at(summary, "throughput", "total_tokens_per_s"),
        **{
            f"{theirs}_{name}_ms": number_at(summary, f"{metric}_ms", ours)
            for name, metric in METRICS.items()
            for theirs, ours in FIGURES.items()
        },
    }


def _spread(named: ReportRun) -> Result:
    """Return the standard deviation of each latency."""
    run = named.run
    done = Completed(run)
    spread: Result = {}
    for name, metric in METRICS.items():
        values = LATENCIES[metric](done) if metric != "itl" else (gap for i in _completed(run) for gap in _gaps(run, i))
        mean_ms = number_at(named.summary.as_dict(), f"{metric}_ms", "mean")
        squares = [(1000 * value - mean_ms) ** 2 for value in values if value == value] if mean_ms is not None else []
        spread[f"std_{name}_ms"] = math.sqrt(math.fsum(squares) / len(squares)) if squares else None
    return spread


def _peaks(run: Run) -> Result:
    """Return the most tokens in a second and the most requests at once in one, by seconds of the run as vLLM counts."""
    tokens: Counter[int] = Counter()
    changes: Counter[int] = Counter()
    for index in _completed(run):
        times = run.token_times(index)
        tokens.update(map(int, times))
        if times and run.records.sent_s[index] == run.records.sent_s[index]:
            changes[int(run.records.sent_s[index])] += 1
            changes[int(times[-1]) + 1] -= 1
    at_once = most = 0
    for second in sorted(changes):
        at_once += changes[second]
        most = max(most, at_once)
    return {"max_output_tokens_per_s": float(max(tokens.values(), default=0)), "max_concurrent_requests": most}


def _lists(run: Run) -> Result:
    """Return what each request that was offered came to; one that failed has no tokens."""
    lists: dict[str, list[Any]] = {
        name: [] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")
    }
    records = run.records
    for index, outcome in enumerate(records.outcome):
        if outcome == Outcome.WITHHELD:
            continue
        completed = outcome == Outcome.COMPLETED
        first, sent_s = records.first[index], records.sent_s[index]
        sent = sent_s == sent_s
        lists["input_lens"].append(records.prompt_tokens[index] or run.requests.prompt_tokens[index])
        lists["output_lens"].append(records.output_tokens[index] if completed else 0)
        lists["ttfts"].append(run.times[first] - sent_s if completed and sent and first >= 0 else 0.0)
        lists["itls"].append(_gaps(run, index) if completed else [])
        lists["start_times"].append(sent_s if sent else None)
        lists["generated_texts"].append("")
        lists["errors"].append("" if completed else records.reason.get(index, "unfinished"))
    return lists


def _gaps(run: Run, index: int) -> list[float]:
    times = run.token_times(index)
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def _completed(run: Run) -> Iterator[int]:
    return (index for index, outcome in enumerate(run.records.outcome) if outcome == Outcome.COMPLETED)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
