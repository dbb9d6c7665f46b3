"""Runs made by hand for the tests of whatever reads runs: no engine and no server, only records."""

from __future__ import annotations

import random
from array import array

from servesim.runs.records import EngineTotals, Outcome, Records, Run, StepLog
from servesim.workload.requests import Requests


def make_requests(prompts: list[int], outputs: list[int]) -> Requests:
    requests = Requests()
    requests.prompt_tokens.extend(prompts)
    requests.output_tokens.extend(outputs)
    requests.arrival_s.extend([float("nan")] * len(prompts))
    return requests


def measured(*streams: dict) -> Run:
    """Return a measured run of `streams`: each with `sent`, `times` and whatever else differs from a plain success."""
    run = Run(
        "measured",
        make_requests([s.get("prompt", 5) for s in streams], [s.get("asked", len(s["times"])) for s in streams]),
        Records(len(streams)),
        array("d"),
        {"seed": 7},
    )
    records = run.records
    records.end_s = array("d", [float("nan")] * len(streams))
    records.visible = array("q", [-1] * len(streams))
    for i, stream in enumerate(streams):
        times = stream["times"]
        records.sent_s[i] = stream.get("sent", 0.0)
        records.planned_s[i] = run.requests.arrival_s[i] = stream.get("planned", records.sent_s[i])
        records.prompt_tokens[i] = stream.get("prompt", 5)
        records.output_tokens[i] = stream.get("tokens", len(times))
        records.cached_tokens[i] = stream.get("cached", -1)
        records.outcome[i] = stream.get("outcome", Outcome.COMPLETED)
        if times:
            records.first[i] = len(run.times)
            run.times.extend(times)
            records.last[i] = len(run.times) - 1
            records.visible[i] = records.first[i] + stream.get("visible", 0)
            records.end_s[i] = stream.get("end", times[-1])
        if "reason" in stream:
            records.reason[i] = stream["reason"]
        if "extra" in stream:
            records.extra[i] = stream["extra"]
    return run


def random_simulated(seed: int, *, outcomes: bool = True) -> Run:
    """Return a run on a random step log, with preemptions, stalls, failures and lone tokens."""
    rng = random.Random(seed)
    size, steps = rng.randint(1, 25), rng.randint(1, 60)
    log, now = StepLog(), 0.0
    for step in range(steps):
        if rng.random() < 0.1:
            now += rng.random()
            log.starts[step] = now
        now += rng.choice([0.01, 0.02, rng.random() / 50])
        log.end_s.append(now)
        log.prefill_tokens.append(rng.randint(0, 99))
        log.kv_blocks.append(rng.randint(0, 99))
        log.decodes.append(0)
    records = Records(size)
    late_client = rng.random() < 0.5
    asked = []
    for i in range(size):
        tokens = sorted(rng.sample(range(steps), rng.randint(1, min(steps, rng.choice([1, 2, 5, steps])))))
        if rng.random() < 0.6:
            tokens = list(range(tokens[0], tokens[-1] + 1))
        slices: list[tuple[int, int]] = []
        for token in tokens:
            if slices and token == slices[-1][1] + 1:
                slices[-1] = (slices[-1][0], token)
                log.decodes[token] += 1
            else:
                slices.append((token, token))
        start_s = log.end_s[tokens[0] - 1] if tokens[0] else 0.0
        records.admitted_s[i] = start_s
        records.sent_s[i] = start_s * rng.random()
        records.planned_s[i] = records.sent_s[i] * (rng.random() if late_client else 1.0)
        records.prompt_tokens[i] = rng.randint(1, 9)
        outcome = rng.choice([*Outcome, *[Outcome.COMPLETED] * 6]) if outcomes else Outcome.COMPLETED
        records.outcome[i] = outcome
        asked.append(rng.randint(len(tokens), len(tokens) + 3))
        if outcome in (Outcome.REJECTED, Outcome.WITHHELD):
            records.admitted_s[i] = float("nan")
            if outcome == Outcome.REJECTED:
                records.reason[i] = rng.choice(["over_kv_cache", "queue_full"])
            else:
                records.sent_s[i] = records.planned_s[i] = float("nan")
            continue
        records.output_tokens[i] = len(tokens)
        records.cached_tokens[i] = rng.randint(0, 3)
        records.first[i], records.last[i] = tokens[0], tokens[-1]
        if len(slices) > 1:
            records.slices[i] = slices
            records.preempted[i] = [(log.end_s[stop], log.end_s[stop]) for _, stop in slices[:-1]]
        if outcome == Outcome.FAILED:
            records.reason[i] = "timeout"
            records.attempts[i] = rng.randint(2, 4)
        elif outcome == Outcome.COMPLETED and rng.random() < 0.1:
            records.capped.add(i)
    totals = EngineTotals(steps=steps, scheduled=rng.randint(steps, 9 * steps), busy_s=now, num_blocks=100)
    totals.kv_peak_blocks, totals.kv_block_seconds, totals.elapsed_s = max(log.kv_blocks), now * 30, now
    totals.preemptions = sum(map(len, records.preempted.values()))
    totals.looked_up_tokens, totals.hit_tokens = rng.choice([(0, 0), (200, 50)])
    requests = make_requests(list(records.prompt_tokens), asked)
    requests.arrival_s = records.planned_s[:]
    return Run("simulated", requests, records, log.end_s, {"seed": seed}, steps=log, engine=totals)
