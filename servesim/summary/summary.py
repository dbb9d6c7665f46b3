"""What a run comes to: the one place where a simulated and a measured run get their figures, by the same definitions.

`summarize` reads a `Run` and changes nothing in it. Offered = completed + failed + rejected + unfinished; latencies and
tokens are those of completed requests; throughput is their tokens over the span from the first send to the last token
that anybody received. What each latency is stands in `latency`, what an objective asks in `slo`. How figures are
printed is not known here, except that latencies leave in milliseconds under the names of the JSON documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from operator import eq, or_

from servesim.runs.records import Outcome, Run
from servesim.stats import Distribution, Sample, Tally, Values, describe, nearest_rank
from servesim.summary.classes import check_classes, class_names, jain, normalized_latency_s, part
from servesim.summary.latency import LATENCIES, METRICS, Completed, late_gaps, pooled_gaps, token_events
from servesim.summary.metrics import ClassFigures as ClassFigures
from servesim.summary.metrics import EngineFigures as EngineFigures
from servesim.summary.metrics import RequestCounts as RequestCounts
from servesim.summary.metrics import Summary as Summary
from servesim.summary.metrics import Throughput as Throughput
from servesim.summary.metrics import TokenCounts as TokenCounts
from servesim.summary.metrics import imbalance, offload_figures, overload_figures, speculation_figures, stages_ms
from servesim.summary.slo import Goodput, Slo, SloResult, judge


def summarize(run: Run, slos: Sequence[Slo] = ()) -> Summary:
    """Return the summary of `run`, judged by `slos`. Sorts a few columns; never visits a token.

    Raises `InputError` for an objective of a class that no request has.
    """
    return _summarize(run, slos).summary


def _summarize(run: Run, slos: Sequence[Slo]) -> _Part:
    done = Completed(run)
    requests = _count_requests(run, done)
    tokens = _count_tokens(run, done)
    duration_s = _duration_s(run)
    general = [slo for slo in slos if slo.class_name is None]
    latencies, judged, good = _judge_latencies(run, done, general, requests.offered - requests.completed)
    results = dict(zip(general, judged, strict=True))
    parts = _summarize_parts(run, slos)
    if len(general) < len(slos):
        good = sum(one.good for one in parts)
        for one in parts:
            results |= one.results
    classes = [_class_figures(one) for one in parts]
    summary = Summary(
        source=run.source,
        partial=run.partial,
        requests=requests,
        attempts=requests.offered + sum(run.records.attempts.values()) - len(run.records.attempts),
        tokens=tokens,
        duration_s=duration_s,
        throughput=Throughput(
            output_tokens_per_s=_ratio(tokens.output, duration_s),
            total_tokens_per_s=_ratio(tokens.prompt + tokens.output, duration_s),
            requests_per_s=_ratio(requests.completed, duration_s),
        ),
        prompt_tokens=describe(Tally(Counter(done.column(run.records.prompt_tokens)))),
        output_tokens=describe(Tally(Counter(done.column(run.records.output_tokens)))),
        errors=_count_errors(run),
        engine=_engine_figures(run),
        per_replica=run.replicas or None,
        imbalance=imbalance(run.replicas),
        stages_ms=stages_ms(run),
        link=run.link,
        offload=offload_figures(run),
        speculation=speculation_figures(run),
        overload=overload_figures(run),
        scaling=run.scaling,
        usage=run.usage,
        classes=classes or None,
        fairness=jain(figures.normalized_latency_ms for figures in classes),
        slo=[results[slo] for slo in slos] if slos else None,
        goodput=Goodput(requests_per_s=_ratio(good, duration_s), fraction=_ratio(good, requests.offered))
        if slos
        else None,
        warnings=[*run.warnings, *_warnings(requests, list(results.values()))],
        violations=list(run.violations),
        client=run.client,
        server=run.server,
        **{f"{name}_ms": distribution for name, distribution in latencies.items()},
    )
    return _Part(name=None, run=run, summary=summary, good=good, results=results)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A run, or its requests of one class, summed up: how many kept what is asked of them, and how each was kept."""

    name: str | None
    run: Run
    summary: Summary
    good: int
    results: dict[Slo, SloResult]


def _summarize_parts(run: Run, slos: Sequence[Slo]) -> list[_Part]:
    """Return every class of a run summed up, each judged by what is asked of all and what is asked of it."""
    names = class_names(run)
    check_classes(run.requests, slos)
    parts = []
    for name in names:
        own = {slo: slo for slo in slos if slo.class_name is None}
        own |= {replace(slo, class_name=None): slo for slo in slos if name is not None and slo.class_name == name}
        found = _summarize(part(run, name), list(own))
        results = {own[slo]: replace(kept, class_name=name) for slo, kept in found.results.items()}
        parts.append(replace(found, name=name, results={s: r for s, r in results.items() if s.class_name is not None}))
    return parts


def _class_figures(one: _Part) -> ClassFigures:
    summary, latency_s = one.summary, normalized_latency_s(one.run)
    return ClassFigures(
        name=one.name,
        normalized_latency_ms=None if latency_s is None else latency_s * 1000,
        **{field.name: getattr(summary, field.name) for field in fields(ClassFigures) if hasattr(summary, field.name)},
    )


def _count_requests(run: Run, done: Completed) -> RequestCounts:
    records = run.records
    outcomes = records.outcome
    return RequestCounts(
        offered=len(records) - outcomes.count(Outcome.WITHHELD),
        completed=done.count,
        failed=outcomes.count(Outcome.FAILED),
        rejected=outcomes.count(Outcome.REJECTED),
        unfinished=outcomes.count(Outcome.UNFINISHED),
        capped=sum(outcomes[index] == Outcome.COMPLETED for index in records.capped),
        empty=list(done.column(records.output_tokens)).count(0),
        warmup=0 if run.warmup is None else len(run.warmup.records),
    )


def _count_tokens(run: Run, done: Completed) -> TokenCounts:
    records = run.records
    output = sum(done.column(records.output_tokens))
    unknown = sum(1 for cached in done.column(records.cached_tokens) if cached < 0)
    cached = sum(done.column(records.cached_tokens)) + unknown
    estimated = sum(
        records.output_tokens[index]
        for index, facts in records.extra.items()
        if facts.get("estimated") and records.outcome[index] == Outcome.COMPLETED
    )
    return TokenCounts(
        prompt=sum(done.column(records.prompt_tokens)),
        output=output,
        cached=None if unknown and unknown == done.count else cached,
        estimated=estimated,
        per_event=_ratio(output, token_events(run, done)),
    )


def _duration_s(run: Run) -> float | None:
    """Return the seconds from the first send to the last token received, by whomever; None without a token."""
    records = run.records
    received = max(map(run.times.__getitem__, compress(records.last, map((0).__le__, records.last))), default=None)
    sent = min(compress(records.sent_s, map(eq, records.sent_s, records.sent_s)), default=None)  # NaN != NaN
    return None if received is None or sent is None else received - sent


def _count_errors(run: Run) -> dict[str, int]:
    """Return how often each kind of failure or rejection occurred, the most frequent first."""
    outcomes = run.records.outcome
    kinds = Counter(
        kind for index, kind in run.records.reason.items() if outcomes[index] in (Outcome.FAILED, Outcome.REJECTED)
    )
    unnamed = outcomes.count(Outcome.FAILED) + outcomes.count(Outcome.REJECTED) - kinds.total()
    if unnamed:
        kinds["unknown"] += unnamed
    return dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _judge_latencies(
    run: Run, done: Completed, slos: Sequence[Slo], incomplete: int
) -> tuple[dict[str, Distribution | None], list[SloResult], int]:
    """Return the distribution of every metric in ms, how each SLO was kept, and how many requests kept them all."""
    distributions: dict[str, Distribution | None] = {}
    results: dict[Slo, SloResult] = {}
    late = bytearray(done.count)
    twins = done.twins()
    for metric in METRICS:
        asked = [slo for slo in slos if slo.metric == metric]
        if metric in twins and not asked:
            distributions[metric] = distributions[twins[metric]]
            continue
        sample: Sample
        if metric == "itl":
            sample = pooled_gaps(run, done)
            for slo in asked:
                late = bytearray(map(or_, late, _own_gaps_late(run, done, slo)))
        else:
            values = LATENCIES[metric](done)
            for slo in asked:
                late = bytearray(map(or_, late, map(slo.limit_s.__lt__, values)))  # NaN, absent, is not late
            sample = Values(values)
            del values
        distributions[metric] = describe(sample, scale=1000)
        for slo in asked:
            results[slo] = judge(slo, sample, _gaps_never_seen(run) if metric == "itl" else incomplete)
        del sample  # a column of a million is gone before the next is made
    return distributions, [results[slo] for slo in slos], late.count(0)


def _own_gaps_late(run: Run, done: Completed, slo: Slo) -> list[bool]:
    """Return for each completed request whether more of its own gaps are late than the percentile lets pass."""
    return [
        gaps > 0 and late > gaps - nearest_rank(slo.percentile, gaps)
        for late, gaps in late_gaps(run, done, slo.limit_s)
    ]


def _gaps_never_seen(run: Run) -> int:
    """Return the gaps that requests asked for that did not complete, at least one each."""
    left = (Outcome.FAILED, Outcome.REJECTED, Outcome.UNFINISHED)
    asked = zip(run.requests.output_tokens, run.records.outcome, strict=True)
    return sum(max(1, tokens - 1) for tokens, outcome in asked if outcome in left)


def _engine_figures(run: Run) -> EngineFigures:
    """Return what the engine counted, or what a measured server's own metrics say."""
    totals = run.engine
    if totals is None:
        known = run.server or {}
        names = ("mean_batch", "kv_peak", "kv_mean", "preemptions", "prefix_hit_rate")
        figures = {name: known[name] if isinstance(known.get(name), (int, float)) else None for name in names}
        return EngineFigures(steps=None, evictions=None, **figures)
    return EngineFigures(
        steps=totals.steps,
        mean_batch=_ratio(totals.scheduled, totals.steps),
        kv_peak=_ratio(totals.kv_peak_blocks, totals.num_blocks),
        kv_mean=_ratio(totals.kv_block_seconds, totals.num_blocks * totals.elapsed_s),
        preemptions=totals.preemptions,
        evictions=totals.evictions,
        prefix_hit_rate=_ratio(totals.hit_tokens, totals.looked_up_tokens),
    )


def _warnings(requests: RequestCounts, results: Sequence[SloResult]) -> list[str]:
    warnings = []
    if requests.unfinished:
        warnings.append(
            f"{requests.unfinished:,} of {requests.offered:,} requests are unfinished: "
            f"latencies are those of the {requests.completed:,} that completed"
        )
    unjudged = sorted({result.metric for result in results if result.met is None})
    if unjudged:
        warnings.append(f"no request has a value of {', '.join(unjudged)}: the objective cannot be judged")
    return warnings


def _ratio(numerator: float, denominator: float | None) -> float | None:
    """Return the quotient, None where it would mean nothing."""
    if not denominator or not math.isfinite(denominator):
        return None
    quotient = numerator / denominator
    return quotient if math.isfinite(quotient) else None  # a run's file may say that it took next to no time
