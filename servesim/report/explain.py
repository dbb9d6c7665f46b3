"""Where time went: one request's, phase by phase, and that of steps, by the terms of a cost model.

| phase of a request | from | to |
|---|---|---|
| `queue` | sent | start of the step that first admitted it |
| `prefill` | that | its first token, or a preemption before it |
| `decode` | a token | the last token, or a preemption |
| `preempted` | a preemption | start of the step that admitted it again |
| `recompute` | that | its next token |

Disaggregated, `prefill` ends with the prompt; `link wait`, `transfer` and `decode queue` lie between it and the first
token, as `servesim.summary.metrics` defines them. A measured request's wait and prefill cannot be told apart from
outside: they are one phase, `queue and prefill`. Times are rounded to whole us from its send, so that the parts add up
to its E2E to the last digit in every form.

The steps of a plan are a decode step of one sequence, of a full batch, and one with a prompt in it; those of a run are
all of its steps, with and without a prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from servesim.config.build import Server
from servesim.cost.detailed import TERMS as DETAILED_TERMS
from servesim.cost.model import TermWatch, terms_of
from servesim.cost.roofline import TERMS as ROOFLINE_TERMS
from servesim.errors import InputError
from servesim.runs.records import Outcome, Run
from servesim.units import format_number, suggest, us

PHASES = (
    "queue",
    "queue and prefill",
    "prefill",
    "link wait",
    "transfer",
    "decode queue",
    "decode",
    "preempted",
    "recompute",
)
SHOWN_SPANS = 24

TERMS: dict[str, str] = {**DETAILED_TERMS, **ROOFLINE_TERMS}
"""Every term of every cost model by name, and what it is."""

_ACROSS = (("link wait", "link_start_s"), ("transfer", "transfer_end_s"), ("decode queue", "decode_start_s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one phase, in us since the request was sent."""

    phase: str
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One request's time from its send to its last token, or as far as it came."""

    index: int
    id: str
    outcome: str
    reason: str | None
    attempts: int
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    sent_s: float | None
    spans: tuple[Span, ...]
    replica_of: dict[str, int]  # of a fleet: the replicas that served it
    longest_gap_us: int | None
    longest_gap_after: int | None  # the token, from 1, after which the longest gap came

    @property
    def e2e_us(self) -> int:
        """Return how long it took, or how long until it was given up or lost from sight."""
        return self.spans[-1].end_us if self.spans else 0

    def phases_us(self) -> dict[str, int]:
        """Return the time in each phase that occurred; the sum is `e2e_us`."""
        totals: dict[str, int] = {}
        for span in self.spans:
            totals[span.phase] = totals.get(span.phase, 0) + span.end_us - span.start_us
        return {phase: totals[phase] for phase in PHASES if phase in totals}

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as a JSON object, in milliseconds to three decimals."""
        return {
            "index": self.index,
            "id": self.id,
            "outcome": self.outcome,
            "reason": self.reason,
            "attempts": self.attempts,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "sent_s": self.sent_s,
            **self.replica_of,
            "e2e_ms": self.e2e_us / 1000 if self.outcome == "completed" else None,
            "phases_ms": {phase: total / 1000 for phase, total in self.phases_us().items()},
            "longest_gap_ms": None if self.longest_gap_us is None else self.longest_gap_us / 1000,
            "longest_gap_after_token": self.longest_gap_after,
            "timeline": [
                {"phase": span.phase, "start_ms": span.start_us / 1000, "end_ms": span.end_us / 1000}
                for span in self.spans
            ],
        }


def explain(run: Run, request: str) -> Explanation:
    """Return where the time of the request with the id `request` went; raise `InputError` if there is none."""
    index = _find(run, request)
    records, times = run.records, run.token_times(index)
    sent_s = records.sent_s[index]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    longest = max(gaps, default=None)
    cached = records.cached_tokens[index]
    return Explanation(
        index=index,
        id=run.requests.id(index),
        outcome=Outcome(records.outcome[index]).name.lower(),
        reason=records.reason.get(index, "capped" if index in records.capped else None),
        attempts=records.attempts.get(index, 1),
        prompt_tokens=records.prompt_tokens[index],
        cached_tokens=None if cached < 0 else cached,
        output_tokens=records.output_tokens[index],
        sent_s=sent_s if sent_s == sent_s else None,
        spans=tuple(
            Span(phase=phase, start_us=us(start - sent_s), end_us=us(end - sent_s))
            for phase, start, end in spans(run, index, times)
        ),
        replica_of={name: column[index] for name, column in run.replica_of.items()},
        longest_gap_us=None if longest is None else us(longest),
        longest_gap_after=None if longest is None else gaps.index(longest) + 1,
    )


def explain_text(found: Explanation) -> str:
    """Return the found as a block of lines, ending with a newline."""
    cached = "" if found.cached_tokens is None else f" ({found.cached_tokens:,} cached)"
    ended = found.outcome + (f" ({found.reason})" if found.reason else "")
    lines = [
        f"request {found.id}: {found.prompt_tokens:,} prompt tokens{cached}, {found.output_tokens:,} output, {ended}"
    ]
    if found.replica_of:
        lines.append(
            "  " + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in found.replica_of.items())
        )
    if found.attempts > 1:
        lines.append(f"  sent {found.attempts} times: earlier attempts are inside the first phase")
    whole = found.e2e_us
    for phase, total in found.phases_us().items():
        times = sum(span.phase == phase for span in found.spans)
        share = f"{100 * total / whole:5.1f}%" if whole else "     -"
        lines.append(f"  {phase:<17} {_ms(total):>16} {share}" + (f"   {times} times" if times > 1 else ""))
    lines.append(f"  {'e2e' if found.outcome == 'completed' else 'in all':<17} {_ms(whole):>16}")
    if found.longest_gap_us is not None:
        lines.append(f"  longest gap       {_ms(found.longest_gap_us):>16}   after token {found.longest_gap_after:,}")
    if found.sent_s is not None and len(found.spans) > 1:
        lines.append(f"timeline, from its send at {found.sent_s:.6f} s")
        lines += [f"  {_ms(span.start_us):>16}  {span.phase}" for span in found.spans[:SHOWN_SPANS]]
        if len(found.spans) > SHOWN_SPANS:
            lines.append(f"  ... {len(found.spans) - SHOWN_SPANS:,} more changes")
        lines.append(f"  {_ms(whole):>16}  {'last token' if found.outcome == 'completed' else found.outcome}")
    return "".join(f"{line}\n" for line in lines)


def _find(run: Run, request: str) -> int:
    ids = run.requests.ids
    if ids is None:
        if request.isascii() and request.isdigit() and len(request) < 19 and int(request) < len(run.records):
            return int(request)
        raise InputError(f"unknown request {request[:40]!r}, must be a number below {len(run.records)}")
    if request not in ids:
        raise suggest("request", request, ids[:1000])
    return ids.index(request)


def spans(run: Run, index: int, times: list[float]) -> Iterable[tuple[str, float, float]]:
    """Yield (phase, start, end) in seconds, each beginning where the one before it ended."""
    records = run.records
    now, admitted_s = records.sent_s[index], records.admitted_s[index]
    end = _end(run, index, times)
    if now != now or end is None:
        return
    if admitted_s != admitted_s:
        phase = "queue" if run.source == "simulated" else "queue and prefill"
        if run.source == "simulated" or not times:
            yield phase, now, end
            return
    else:
        yield "queue", now, admitted_s
        now, phase = admitted_s, "prefill"
    preempted = records.preempted.get(index, [])
    if run.stages and run.stages["prefill_end_s"][index] == run.stages["prefill_end_s"][index]:
        done_s = run.stages["prefill_end_s"][index]
        yield from _until(done_s, now, phase, [span for span in preempted if span[0] < done_s], [done_s])
        preempted = [span for span in preempted if span[0] >= done_s]
        now = done_s
        for phase, stage in _ACROSS:
            at = min(run.stages[stage][index], end)  # NaN, not so far yet, is not below the end
            at = at if at == at else end
            if at > now:
                yield phase, now, at
                now = at
        phase = "decode"
    yield from _until(end, now, phase, preempted, times)


def _until(
    end: float, now: float, phase: str, preempted: list[tuple[float, float]], times: list[float]
) -> Iterable[tuple[str, float, float]]:
    """Yield the phases on one engine from `now`, in `phase`, to `end`; tokens came at `times`."""
    for preempted_s, resumed_s in [*preempted, (end, end)]:
        token = bisect_right(times, now)
        if phase != "decode" and token < len(times) and times[token] <= preempted_s:
            yield phase, now, times[token]
            now, phase = times[token], "decode"
        if preempted_s > now:
            yield phase, now, preempted_s
            now = preempted_s
        if preempted_s == end:
            return
        back_s = resumed_s if resumed_s == resumed_s else end
        yield "preempted", now, back_s
        now, phase = back_s, "recompute"


def _end(run: Run, index: int, times: list[float]) -> float | None:
    """Return when a request was over: its last token; else when it was last heard of, or the run's end."""
    records = run.records
    if records.outcome[index] == Outcome.COMPLETED:
        return times[-1] if times else None
    if records.outcome[index] == Outcome.REJECTED:
        return None
    known = [t for change in records.preempted.get(index, ()) for t in change if t == t]
    known += [t for column in run.stages.values() for t in (column[index],) if t == t]
    known += times[-1:] + [t for t in (records.admitted_s[index],) if t == t]
    if records.end_s is not None and records.end_s[index] == records.end_s[index]:
        known.append(records.end_s[index])
    if records.outcome[index] == Outcome.UNFINISHED and len(run.times):
        known.append(max(run.times))
    return max(known, default=None)


def _ms(us: int) -> str:
    return f"{format_number(us / 1000, 3)} ms"


PROMPT_TOKENS = 2048
FULL_BATCH = 256


@dataclass(slots=True, frozen=True, kw_only=True)
class CostShare:
    """Seconds of each term in the steps that `what` names."""

    what: str
    steps: int
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def plan_shares(server: Server, context: int | None = None) -> list[CostShare]:
    """Return the terms of three steps of a server: one sequence, as many as fit (max_num_seqs at most), a prompt.

    `context` are the cached tokens of each sequence; without it, half of the plan's tokens per request.
    """
    cost, plan = server.cost(), server.plan
    each = max(1, plan.tokens_per_request // 2) if context is None else context
    batch = max(1, min(server.config.max_num_seqs, FULL_BATCH, plan.kv_tokens // max(each, 1)))
    prompt = min(PROMPT_TOKENS, server.config.max_num_batched_tokens - batch)
    wanted: list[tuple[str, int, int, list[tuple[int, int]]]] = [
        (f"a decode step of 1 sequence at {each:,} tokens", 1, each, []),
        (f"a decode step of {batch:,} sequences at {each:,} tokens", batch, batch * each, []),
    ]
    if prompt > 0:
        wanted.append((f"the same with {prompt:,} tokens of a prompt", batch, batch * each, [(prompt, prompt)]))
    shares = [
        CostShare(what=what, steps=1, seconds=terms_of(cost, sequences, tokens, chunks))
        for what, sequences, tokens, chunks in wanted
    ]
    return [share for share in shares if share.total_s > 0]


def run_shares(watch: TermWatch) -> list[CostShare]:
    """Return the terms of the steps of a run, those that only decode and those with a prompt apart."""
    shares = [
        CostShare(what="steps that only decode", steps=watch.decode_steps, seconds=watch.decode_s),
        CostShare(what="steps with a prompt in them", steps=watch.mixed_steps, seconds=watch.mixed_s),
    ]
    return [share for share in shares if share.steps and share.total_s > 0]


def cost_text(shares: Iterable[CostShare]) -> str:
    """Return a block for each of the shares, the largest term first; terms under a thousandth are left out."""
    blocks = []
    for share in shares:
        total, each = share.total_s, share.total_s / share.steps * 1e3
        if share.steps > 1:
            head = f"{share.steps:,} {share.what}, {format_number(total, 3)} s in all, {format_number(each, 3)} ms each"
        else:
            head = f"{share.what}, {format_number(each, 3)} ms"
        lines = [f"cost of {head}"]
        for name, seconds in sorted(share.seconds.items(), key=lambda term: -term[1]):
            if seconds >= 0.001 * total:
                text = f"{format_number(seconds / share.steps * 1e3, 3):>11} ms"
                lines.append(f"  {name:<11}{seconds / total:>7.1%}{text}   {TERMS.get(name, '')}".rstrip())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A `CostShare` in a document: milliseconds of each term in a step, on average."""

    what: str
    steps: int
    step_ms: float | None
    terms_ms: dict[str, float]


def step_costs(shares: Iterable[CostShare]) -> list[StepCost]:
    """Return the shares as a document has them."""
    return [
        StepCost(
            what=share.what,
            steps=share.steps,
            step_ms=share.total_s / share.steps * 1e3,
            terms_ms={name: seconds / share.steps * 1e3 for name, seconds in share.seconds.items()},
        )
        for share in shares
    ]
