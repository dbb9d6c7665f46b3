"""From an engine that has stopped to the run that it made: the totals of its steps, the columns that need no step.

It knows columns, logs and totals alone, so one engine and a fleet of them end alike.
"""

from __future__ import annotations

import math
from array import array

from servesim.runs.records import EngineTotals, Outcome, Records, StepLog
from servesim.workload.workload import Workload


def close_log(log: StepLog, totals: EngineTotals) -> None:
    """Complete the step log of one engine, and the totals that follow from it."""
    log.fill()
    log.starts.pop(len(log), None)  # it woke up for nothing
    totals.steps = log.steps()
    if totals.steps:
        durations_s = log.durations_s()
        totals.busy_s = math.fsum(durations_s)
        totals.elapsed_s = log.end_s[-1]
        totals.kv_peak_blocks = max(log.kv_blocks)
        totals.kv_block_seconds = log.integrate_blocks(durations_s)


def close_records(records: Records, workload: Workload, targets: array[int], live: set[int]) -> None:
    """Fill in the columns that need no step to be known: when requests were sent, what they asked, who was capped.

    `live` are the requests that are still in an engine.
    """
    requests = workload.requests
    records.prompt_tokens = requests.prompt_tokens[:]
    if all(map(math.isnan, records.sent_s)):  # none was noted by itself: all were sent when they were due
        records.sent_s = requests.arrival_s[:]
        if Outcome.UNFINISHED in records.outcome:
            for index, outcome in enumerate(records.outcome):
                if outcome == Outcome.UNFINISHED and index not in live:
                    records.sent_s[index] = math.nan
    else:  # in a fleet of several kinds, only the engines that may refuse a request note it
        for index, sent_s in enumerate(records.sent_s):
            if sent_s != sent_s and (records.outcome[index] != Outcome.UNFINISHED or index in live):
                records.sent_s[index] = requests.arrival_s[index]
    records.planned_s = records.sent_s[:]
    for index in workload.withheld():
        records.outcome[index] = Outcome.WITHHELD
    if targets is not requests.output_tokens:
        records.capped = {
            index
            for index, (target, asked) in enumerate(zip(targets, requests.output_tokens, strict=True))
            if target < asked and records.outcome[index] == Outcome.COMPLETED
        }
