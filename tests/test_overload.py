"""Overload: retries by attempt, retry budgets, and the collapse that outlives its cause."""

from __future__ import annotations

import random
import unittest
from functools import cache
from pathlib import Path
from typing import Any

from servesim import simulate, summarize
from servesim.errors import InputError
from servesim.runs.records import Outcome, Run
from servesim.summary.summary import Summary
from servesim.workload.requests import Requests
from servesim.workload.workload import CREDIT, OpenLoop, Retrying
from tests.command import servesim
from tests.extent import in_full, once

SPIKE = str(Path(__file__).resolve().parent.parent / "fixtures/spike.csv")


def storm(**options: Any) -> Run:
    base: dict[str, Any] = {"rate": 60.0, "requests": 400, "client_timeout_s": 4.0, "retries": 3, "backoff_s": 0.5}
    return simulate(**base | options)


class Accounting(unittest.TestCase):
    def test_every_request_is_accounted_for_by_attempt(self) -> None:
        for seed in range(12):
            draw = random.Random(seed)
            options: dict[str, Any] = {
                "seed": seed,
                "retries": draw.randint(0, 4),
                "rate": draw.choice((20.0, 40.0, 80.0)),
                "client_timeout_s": draw.choice((1.0, 3.0, 8.0)),
                "max_num_queued_reqs": draw.choice((None, 5, 50)),
                "async_scheduling": draw.random() < 0.5,
                "horizon_s": draw.choice((None, 8.0)),
                "retry_budget": None,
            }
            if options["retries"]:
                options["retry_budget"] = draw.choice((None, 0.1, 1.0))
            with self.subTest(**options):
                run = storm(**options)
                self.assertEqual(run.violations, [])
                self.check(run, options["retries"])

    def check(self, run: Run, retries: int) -> None:
        summary = summarize(run)
        figures, counts = summary.overload, summary.requests
        if figures is None:
            self.assertEqual(summary.attempts, counts.offered)
            return
        attempts = figures.attempts
        self.assertLessEqual(len(attempts), retries + 1)
        self.assertEqual(attempts[0].sent, counts.offered)
        self.assertEqual(sum(row.sent for row in attempts), summary.attempts)
        for name, total in (
            ("completed", counts.completed),
            ("gave_up", counts.failed + counts.rejected),
            ("unfinished", counts.unfinished),
        ):
            self.assertEqual(sum(getattr(row, name) for row in attempts), total)
        for before, after in zip(attempts, attempts[1:], strict=False):
            came_back = before.sent - before.completed - before.gave_up - before.unfinished
            self.assertEqual(after.sent, came_back)

    def test_wasted_tokens_are_those_that_no_completed_request_accounts_for(self) -> None:
        run = storm(retries=2)
        totals, records = run.engine, run.records
        assert totals is not None
        rows = zip(run.requests.prompt_tokens, records.output_tokens, records.outcome, strict=True)
        useful = sum(prompt + output - 1 for prompt, output, outcome in rows if outcome == Outcome.COMPLETED)
        self.assertEqual(totals.computed_tokens - totals.recomputed_tokens, useful + totals.wasted_tokens)
        self.assertGreater(totals.wasted_tokens, 0)


class Budget(unittest.TestCase):
    def workload(self, requests: int, budget: float | None) -> Retrying:
        columns = Requests()
        for index in range(requests):
            columns.prompt_tokens.append(1)
            columns.output_tokens.append(1)
            columns.arrival_s.append(float(index))
        return Retrying(OpenLoop(columns), retries=1000, backoff_s=0.1, budget=budget)

    def storm(self, workload: Retrying) -> int:
        """Fail every attempt at once; return how many there were."""
        sent = 0
        while (due := workload.next_due()) < float("inf"):
            for index in workload.take(due):
                sent += 1
                if sent > 5000:
                    return sent
                workload.finished(index, due, "timeout")
        return sent

    def test_a_budget_bounds_the_retries_of_all_clients_together(self) -> None:
        for budget in (0.0, 0.1, 0.5, 2.0):
            with self.subTest(budget=budget):
                self.assertLessEqual(self.storm(self.workload(1000, budget)), 1000 + budget * 1000)

    def test_without_one_a_storm_is_as_large_as_the_retries_let_it(self) -> None:
        self.assertGreater(self.storm(self.workload(1000, None)), 4999)

    def test_no_more_than_a_limit_is_saved_up(self) -> None:
        workload = self.workload(10_000, 1.0)
        for index in workload.take(9999.0):
            workload.finished(index, 9999.0)
        came_back = sum(workload.finished(index, 10_000.0, "timeout") for index in range(1000))
        self.assertEqual(came_back, CREDIT)

    def test_a_budget_without_retries_is_refused(self) -> None:
        with self.assertRaises(InputError):
            simulate(rate=1.0, requests=1, retry_budget=0.1)


@once
class Metastable(unittest.TestCase):
    """`fixtures/spike.csv`: a minute of three times the load, then what was fine before it."""

    @staticmethod
    @cache
    def after(**options: Any) -> tuple[float, Summary]:
        """Return which part of those who came in the last five minutes were served, and the summary."""
        run = simulate(rate_schedule=SPIKE, client_timeout_s=10.0, **options)
        late = [index for index, sent_s in enumerate(run.records.sent_s) if sent_s > 780.0]
        served = sum(run.records.outcome[index] == Outcome.COMPLETED for index in late)
        return served / len(late), summarize(run)

    def test_the_same_load_without_the_spike_is_served_in_full(self) -> None:
        run = simulate(rate=20.0, duration_s=300.0, client_timeout_s=10.0, retries=3)
        self.assertGreater(summarize(run).requests.completed / len(run.records), 0.99)

    def test_with_retries_the_collapse_outlives_the_spike_by_a_quarter_of_an_hour(self) -> None:
        served, summary = self.after(retries=3)
        self.assertLess(served, 0.1)
        assert summary.overload is not None
        self.assertGreater(summary.overload.wasted_fraction, 0.8)

    def test_without_retries_it_recovers(self) -> None:
        self.assertGreater(self.after(retries=0)[0], 0.99)

    @in_full
    def test_a_bounded_queue_or_a_retry_budget_restores_it(self) -> None:
        for options in ({"max_num_queued_reqs": 32}, {"retry_budget": 0.1}):
            with self.subTest(**options):
                served, summary = self.after(retries=3, **options)
                self.assertGreater(served, 0.99)
                assert summary.overload is not None
                self.assertLess(summary.overload.wasted_fraction, 0.15)

    def test_the_report_tells_attempts_and_waste(self) -> None:
        said = servesim(
            *"simulate --rate 60 --requests 200 --client-timeout 4s --retries 2 --backoff 500ms --quiet".split()
        )
        self.assertRegex(said.out, r"(?m)^attempt +sent +completed +gave up +unfinished$")
        self.assertRegex(said.out, r"(?m)^wasted +[\d,]+ tokens computed for clients that had left")


if __name__ == "__main__":
    unittest.main()
