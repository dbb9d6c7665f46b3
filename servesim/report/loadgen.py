"""What a load generator's report has beside the summary: client health, the server's window, prompt lengths.

The server's own histograms stand next to what the client measured; the difference is network, proxy and client time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from servesim.client.prompts import PromptAccuracy, prompt_accuracy
from servesim.console import one_line
from servesim.report.text import LABEL, slo_text, warmup_text
from servesim.runs.records import Outcome, Run
from servesim.runs.writer import request_row
from servesim.stats import figure_at
from servesim.summary.summary import Summary
from servesim.units import format_duration, format_number, percent

MESSAGES = 5  # of failures, told in the text
SHORT_NAMES = {"output_tokens_per_s": "output tok/s"}
COMPARED = {"ttft": "ttft_ms", "itl": "itl_ms", "tpot": "tpot_ms", "queue": "queue_ms", "e2e": "e2e_ms"}
"""The server's histogram, and the client's distribution of the same thing."""
TOLD_TIMINGS = ("latency_s", "prompt_ms", "predicted_per_token_ms", "tokens_per_second")
"""Of what servers measure of each request, what the text tells; the JSON has the mean of everything."""


def accuracy_text(accuracy: PromptAccuracy) -> str:
    """Return how close the prompts came to the asked length."""
    text = (
        f"{percent(accuracy.within_tolerance)} within max(2 tokens, 1%) of the asked length, "
        f"error mean {accuracy.mean_error_tokens:.1f}, max {accuracy.max_error_tokens:,} tokens"
    )
    return _line("prompts", text)


def client_text(client: Mapping[str, Any]) -> str:
    """Return the lines on the client's own health."""
    delay, share = client.get("stamp_delay_ms"), client.get("cpu_fraction")
    lag = client.get("loop_lag_ms")
    lag = lag.get("p99") if isinstance(lag, Mapping) else lag
    late = "" if delay is None else f"stamps late by {_ms(delay)} (p99)   "
    lines = _line("client", f"{client.get('verdict') or '-'}   {late}loop lag {_ms(lag)}   CPU {percent(share)}")
    parts = [f"coalesced {percent(client.get('coalesced_fraction'))}"]
    concurrency = client.get("concurrency")
    if isinstance(concurrency, Mapping):
        asked = concurrency.get("asked")
        in_flight = f"in flight mean {_plain(concurrency.get('mean'))}, max {_plain(concurrency.get('max'), 0)}"
        parts.insert(0, in_flight + ("" if asked is None else f" of {asked:,} asked"))
    lines += _line("", "   ".join(parts))
    rate = client.get("rate")
    if isinstance(rate, Mapping) and rate.get("asked") is not None:
        lines += _line("", f"sent {_plain(rate.get('achieved'), 2)} req/s of {_plain(rate['asked'], 2)} planned")
    if client.get("stale_reconnects"):
        lines += _line(
            "", f"{client['stale_reconnects']:,} requests sent again: the server had closed their connection"
        )
    if client.get("keep_alive") is False:
        lines += _line("", "a new connection for every request: the server closes them behind their answer")
    return lines


def server_text(server: Mapping[str, Any], summary: Summary) -> str:
    """Return the lines on what the server's own metrics say of the same window."""
    name = " ".join(str(server[key]) for key in ("dialect", "version") if server.get(key))
    window = format_duration(server.get("window_s"))
    batch = f"mean batch {_plain(server.get('mean_batch'))}"
    gauges = f"running {_pair(server.get('running'))}   waiting {_pair(server.get('waiting'))}"
    lines = _line("server", f"{name or '-'}   window {window}   {batch}   {gauges}")
    known = [
        ("KV mean", percent(server.get("kv_mean"))),
        ("KV peak", percent(server.get("kv_peak"))),
        ("preemptions", _plain(server.get("preemptions"), 0)),
        ("prefix hit rate", percent(server.get("prefix_hit_rate"))),
        ("prompt tokens", _plain(server.get("prompt_tokens"), 0)),
        ("output tokens", _plain(server.get("output_tokens"), 0)),
    ]
    if text := "   ".join(f"{label} {value}" for label, value in known if value != "-"):
        lines += _line("", text)
    rows = [row for key in COMPARED if (row := _compared(key, server, summary)) is not None]
    if rows:
        lines += _line(
            "mean ms", f"{'client':>11}{'server':>11}{'beyond it':>11}{'server p50':>17}{'p95':>17}{'p99':>17}"
        )
        lines += "".join(rows)
    if server.get("counter_resets"):
        lines += _line("", f"the server started again {server['counter_resets']} times during the run")
    return lines


def differences(server: Mapping[str, Any], summary: Summary) -> dict[str, float | None]:
    """Return by how much the client's mean exceeds the server's own, in ms: network, proxy and client time."""
    return {f"{key}_ms": _difference(key, server, summary) for key in COMPARED if server.get(key)}


def spread_text(repeats: Sequence[Summary]) -> str:
    """Return how much the main figures differ between repeats."""
    lines = f"{f'{len(repeats)} repeats':<{LABEL}}{'mean':>11}{'min':>11}{'max':>11}{'spread':>11}\n"
    for name, values in _figures(repeats).items():
        known = [value for value in values if value is not None]
        if known:
            label = SHORT_NAMES.get(name, name.removesuffix("_ms").replace("_", " "))
            cells = [format_number(value) for value in (sum(known) / len(known), min(known), max(known))]
            lines += f"{label:<{LABEL}}" + "".join(f"{cell:>11}" for cell in [*cells, percent(_spread(values))]) + "\n"
    return lines


def target_text(run: Run) -> str:
    """Return what was measured: the address, the API, the model, and what the server told of itself."""
    config, setup = run.config, run.setup
    parts = [
        str(config.get("url")),
        str(config.get("api")),
        *([f"model {config['model']}"] if config.get("model") else []),
    ]
    lines = _line("target", "   ".join(parts))
    facts = [" ".join(str(setup[key]) for key in ("dialect", "version") if setup.get(key))]
    if setup.get("slots"):
        facts.append(
            f"{setup['slots']:,} slots" + (f" of {setup['slot_tokens']:,} tokens" if setup.get("slot_tokens") else "")
        )
    if setup.get("num_gpu_blocks") and setup.get("block_size"):
        facts.append(f"{setup['num_gpu_blocks']:,} blocks of {setup['block_size']:,} tokens")
    if setup.get("max_model_len"):
        facts.append(f"at most {setup['max_model_len']:,} tokens a request")
    facts = [fact for fact in facts if fact]
    return lines + (_line("", "   ".join(facts)) if facts else "")


def load_text(run: Run, summary: Summary) -> str:
    """Return everything that a measured run's report has beside the summary's block."""
    parts = ["" if run.warmup is None else warmup_text(run.warmup), failures_text(run)]
    accuracy = accuracy_of(run)
    if accuracy is not None:
        parts.append(accuracy_text(accuracy))
    if run.client is not None:
        parts.append(client_text(run.client))
    if run.server is not None:
        parts.append(server_text(run.server, summary))
    timings = timings_of(run)
    if text := "   ".join(f"{name} {timings[name]:,.2f}" for name in TOLD_TIMINGS if name in timings):
        parts.append(_line("", f"its own mean per request: {text}"))
    return "".join(parts)


def load_json(run: Run, summary: Summary) -> dict[str, Any]:
    """Return what a measured run's document has beside the summary; `client` and `server` are always there."""
    accuracy = accuracy_of(run)
    return {
        "client": run.client,
        "server": run.server,
        "server_difference": None if run.server is None else differences(run.server, summary),
        "server_timings": timings_of(run),
        "prompt_accuracy": None if accuracy is None else asdict(accuracy),
        "warmup": [] if run.warmup is None else [request_row(run.warmup, i) for i in range(len(run.warmup.records))],
        "failures": [asdict(each) for each in failures_of(run)],
        "setup": run.setup,
    }


def accuracy_of(run: Run) -> PromptAccuracy | None:
    """Return how close synthetic prompts came to their length, where the server counted them."""
    if run.config.get("prompt") or run.config.get("prompts"):
        return None
    records = run.records
    counted = [
        index
        for index, outcome in enumerate(records.outcome)
        if outcome == Outcome.COMPLETED and not records.extra.get(index, {}).get("estimated")
    ]
    return prompt_accuracy(
        [run.requests.prompt_tokens[index] for index in counted], [records.prompt_tokens[index] for index in counted]
    )


def timings_of(run: Run) -> dict[str, float]:
    """Return the mean over completed requests of every figure that the server measured of each, in its own words."""
    values: dict[str, list[float]] = {}
    for index, outcome in enumerate(run.records.outcome):
        if outcome == Outcome.COMPLETED:
            timings = run.records.extra.get(index, {}).get("timings") or {}
            for name, value in timings.items():
                if isinstance(value, (int, float)) and -1e300 < value < 1e300:  # neither NaN nor a number to choke on
                    values.setdefault(str(name), []).append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


@dataclass(slots=True, frozen=True, kw_only=True)
class Failure:
    """What went wrong with `count` requests, in the words of whoever said so."""

    kind: str
    message: str
    count: int


def failures_of(run: Run) -> list[Failure]:
    """Return what failed or was rejected, the most frequent first."""
    records = run.records
    counts = Counter(
        (records.reason.get(index, "unknown"), str(records.extra.get(index, {}).get("message") or ""))
        for index, outcome in enumerate(records.outcome)
        if outcome in (Outcome.FAILED, Outcome.REJECTED)
    )
    return [Failure(kind=kind, message=message, count=count) for (kind, message), count in counts.most_common()]


def failures_text(run: Run) -> str:
    """Return the messages of what failed, the most frequent ones."""
    failures = failures_of(run)
    lines = ""
    for each in failures[:MESSAGES]:
        lines += _line("failed", f"{each.count:,} {each.kind}" + (f": {each.message}" if each.message else ""))
    if len(failures) > MESSAGES:
        lines += _line("", f"and {len(failures) - MESSAGES:,} other messages; --save keeps each request's")
    return lines


@dataclass(slots=True, frozen=True, kw_only=True)
class Repeats:
    """One figure of repeated runs, and how far apart they lie."""

    values: list[float | None]
    spread: Annotated[float | None, "largest minus smallest, by the mean"]


def repeats_of(summaries: Sequence[Summary]) -> dict[str, Repeats]:
    """Return the main figures of each repeat."""
    return {name: Repeats(values=values, spread=_spread(values)) for name, values in _figures(summaries).items()}


@dataclass(slots=True, frozen=True, kw_only=True)
class FoundLoad:
    """What a search came to, for a person: the highest load that meets, the next one up, why it ended, each probe."""

    key: str  # "concurrency" or "rate"
    load: float | None
    next_load: float | None
    limit: str  # slo, client, maximum or probes
    probes: Sequence[tuple[float, str, Summary]]  # load, answer, what was measured

    def text(self) -> str:
        """Return a line for each probe, and the result."""
        lines = f"{self.key:>12}  {'slo':<10}what was measured\n"
        for load, answer, summary in self.probes:
            parts = [f"{_plain(summary.throughput.output_tokens_per_s)} tok/s", *map(slo_text, summary.slo or ())]
            lines += f"{load:>12g}  {answer:<10}{'   '.join(parts)}\n"
        if self.load is None and self.limit == "client":
            early = f"nothing: at {self.key} {self.next_load:g} the client is saturated already, and measures itself"
            return lines + _line("found", early)
        if self.load is None:
            return lines + _line("found", f"no {self.key} that was tried meets the objectives")
        beyond = "" if self.next_load is None else f"{self.next_load:g}"
        why = {
            "slo": f"{beyond} does not",
            "client": f"at {beyond} the client is saturated, so the server may carry more",
            "maximum": "that is the highest that may be tried",
            "probes": "the search was cut short",
        }[self.limit]
        return lines + _line("found", f"{self.key} {self.load:g} meets the objectives; {why}")

    def as_dict(self) -> dict[str, Any]:
        """Return the search as a JSON object."""
        return {
            "searched": self.key,
            self.key: self.load,
            "next": self.next_load,
            "limit": self.limit,
            "probes": [
                {self.key: load, "answer": answer, "slo": [asdict(each) for each in summary.slo or ()]}
                for load, answer, summary in self.probes
            ],
        }


def _figures(repeats: Sequence[Summary]) -> dict[str, list[float | None]]:
    return {
        "output_tokens_per_s": [repeat.throughput.output_tokens_per_s for repeat in repeats],
        "ttft_p50_ms": [figure_at(repeat.ttft_ms, "p50") for repeat in repeats],
        "ttft_p99_ms": [figure_at(repeat.ttft_ms, "p99") for repeat in repeats],
        "tpot_p50_ms": [figure_at(repeat.tpot_ms, "p50") for repeat in repeats],
        "e2e_p50_ms": [figure_at(repeat.e2e_ms, "p50") for repeat in repeats],
    }


def _spread(values: Sequence[float | None]) -> float | None:
    """Return the largest minus the smallest as a share of the mean."""
    known = [value for value in values if value is not None]
    return (max(known) - min(known)) * len(known) / sum(known) if known and sum(known) else None


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{one_line(text)}".rstrip() + "\n"  # a server may have called itself anything


def _compared(key: str, server: Mapping[str, Any], summary: Summary) -> str | None:
    histogram = server.get(key)
    if not isinstance(histogram, Mapping):
        return None
    mean: float | None = histogram.get("mean")
    cells = [
        format_number(figure_at(getattr(summary, COMPARED[key]), "mean"), 2),
        format_number(None if mean is None else mean * 1000, 2),
        format_number(_difference(key, server, summary), 2),
    ]
    intervals = [_interval(histogram.get(name)) for name in ("p50", "p95", "p99")]
    return f"{key:<{LABEL}}" + "".join(f"{cell:>11}" for cell in cells) + "".join(f"{i:>17}" for i in intervals) + "\n"


def _difference(key: str, server: Mapping[str, Any], summary: Summary) -> float | None:
    histogram = server.get(key)
    mine = figure_at(getattr(summary, COMPARED[key]), "mean")
    if mine is None or not isinstance(histogram, Mapping) or histogram.get("mean") is None:
        return None
    return mine - float(histogram["mean"]) * 1000


def _interval(interval: Any) -> str:
    """Return a histogram's percentile as the interval of ms that it is: `20 - 40`, `<= 20`, `> 40`."""
    if not isinstance(interval, Mapping):
        return "-"
    gt, le = interval.get("gt"), interval.get("le")
    if gt is None and le is None:
        return "-"
    if gt is None:
        return f"<= {float(le or 0) * 1000:g}"
    return f"> {gt * 1000:g}" if le is None else f"{gt * 1000:g} - {le * 1000:g}"


def _plain(value: float | None, digits: int = 1) -> str:
    return format_number(value, digits)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


def _pair(pair: Any) -> str:
    """Return a gauge as `mean (max)`."""
    if not isinstance(pair, Mapping) or pair.get("mean") is None:
        return "-"
    return f"{format_number(pair['mean'])} (max {format_number(pair.get('max'), 0)})"
