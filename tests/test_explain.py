from __future__ import annotations

import json
import unittest
from array import array

from servesim.errors import InputError
from servesim.report.explain import PHASES, Explanation, explain, explain_text
from servesim.runs.records import NAN, Outcome, Records, Run, StepLog
from tests.runs import make_requests, measured, random_simulated


def preempted_once() -> Run:
    """Sent at 0.5; admitted at 1; tokens at 2 and 3; preempted at 3; back at 6; tokens at 7 and 8."""
    log = StepLog(end_s=array("d", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]))
    records = Records(1)
    records.planned_s[0] = records.sent_s[0] = 0.5
    records.admitted_s[0], records.first[0], records.last[0] = 1.0, 1, 7
    records.slices[0], records.preempted[0] = [(1, 2), (6, 7)], [(3.0, 6.0)]
    records.prompt_tokens[0], records.output_tokens[0], records.outcome[0] = 10, 4, Outcome.COMPLETED
    return Run("simulated", make_requests([10], [4]), records, log.end_s, {}, steps=log)


class Phases(unittest.TestCase):
    def told(self, run: Run, request: str = "0") -> dict[str, int]:
        told = explain(run, request)
        self.adds_up(told)
        return {phase: round(total / 1e6) if total % 10**6 == 0 else total for phase, total in told.phases_us().items()}

    def adds_up(self, told: Explanation) -> None:
        self.assertEqual(sum(told.phases_us().values()), told.e2e_us)
        for before, after in zip(told.spans, told.spans[1:], strict=False):
            self.assertEqual(before.end_us, after.start_us)
            self.assertLessEqual(after.start_us, after.end_us)

    def test_a_preempted_requests_time_goes_where_it_went(self):
        phases = self.told(preempted_once())
        self.assertEqual(phases, {"queue": 500_000, "prefill": 1, "decode": 2, "preempted": 3, "recompute": 1})

    def test_a_preemption_before_the_first_token_is_no_decode(self):
        run = preempted_once()
        run.records.preempted[0] = [(1.5, 1.75), (3.0, 6.0)]
        phases = self.told(run)
        self.assertEqual(phases["prefill"], 500_000)
        self.assertEqual(phases["preempted"], 3_250_000)
        self.assertEqual(phases["recompute"], 1_250_000)
        self.assertEqual(phases["decode"], 2)

    def test_a_preemption_while_it_recomputes_adds_to_both(self):
        run = preempted_once()
        run.records.preempted[0] = [(3.0, 5.0), (5.5, 6.0)]
        phases = self.told(run)
        self.assertEqual((phases["preempted"], phases["recompute"]), (2_500_000, 1_500_000))

    def test_one_that_was_never_resumed_waits_until_the_end(self):
        run = preempted_once()
        run.records.outcome[0] = Outcome.UNFINISHED
        run.records.slices.clear()
        run.records.last[0], run.records.preempted[0] = 2, [(3.0, NAN)]
        self.assertEqual(self.told(run)["preempted"], 6)

    def test_one_that_was_never_admitted_is_all_queue(self):
        run = preempted_once()
        run.records.outcome[0], run.records.first[0], run.records.last[0] = Outcome.UNFINISHED, -1, -1
        run.records.slices.clear()
        run.records.preempted.clear()
        run.records.admitted_s[0] = NAN
        self.assertEqual(self.told(run), {"queue": 8_500_000})

    def test_a_rejected_one_took_no_time(self):
        run = preempted_once()
        run.records.outcome[0], run.records.reason[0] = Outcome.REJECTED, "over_kv_cache"
        self.assertEqual(self.told(run), {})
        self.assertIn("rejected (over_kv_cache)", explain_text(explain(run, "0")))

    def test_one_that_ended_at_the_length_limit_says_so(self):
        run = preempted_once()
        run.records.capped.add(0)
        self.assertIn("4 output, completed (capped)", explain_text(explain(run, "0")))

    def test_a_measured_requests_wait_and_prefill_are_one(self):
        run = measured({"sent": 1.0, "times": [1.5, 2.0, 4.0]})
        self.assertEqual(self.told(run), {"queue and prefill": 500_000, "decode": 2_500_000})
        told = explain(run, "0")
        self.assertEqual((told.longest_gap_us, told.longest_gap_after), (2_000_000, 2))

    def test_a_single_token_is_all_queue_and_prefill(self):
        self.assertEqual(self.told(measured({"times": [1.0]})), {"queue and prefill": 1})

    def test_parts_add_up_to_e2e_for_every_request_of_random_runs(self):
        for seed in range(150):
            run = random_simulated(seed)
            for index in range(len(run.records)):
                told = explain(run, str(index))
                with self.subTest(seed=seed, index=index):
                    self.adds_up(told)
                    self.assertLessEqual(set(told.phases_us()), set(PHASES))
                    json.dumps(told.as_dict(), allow_nan=False)
                    if run.records.outcome[index] == Outcome.COMPLETED:
                        e2e_s = run.token_times(index)[-1] - run.records.sent_s[index]
                        self.assertEqual(told.e2e_us, round(e2e_s * 1e6))


class Told(unittest.TestCase):
    def test_the_text_is_this(self):
        self.assertEqual(
            explain_text(explain(preempted_once(), "0")),
            """\
request 0: 10 prompt tokens (0 cached), 4 output, completed
  queue                   500.000 ms   6.7%
  prefill               1,000.000 ms  13.3%
  decode                2,000.000 ms  26.7%   2 times
  preempted             3,000.000 ms  40.0%
  recompute             1,000.000 ms  13.3%
  e2e                   7,500.000 ms
  longest gap           4,000.000 ms   after token 2
timeline, from its send at 0.500000 s
          0.000 ms  queue
        500.000 ms  prefill
      1,500.000 ms  decode
      2,500.000 ms  preempted
      5,500.000 ms  recompute
      6,500.000 ms  decode
      7,500.000 ms  last token
""",
        )

    def test_an_unknown_request_is_one_line_with_a_remedy(self):
        run = preempted_once()
        for request in ("1", "-1", "x", "²", "9" * 30, ""):
            with self.subTest(request=request), self.assertRaisesRegex(InputError, "must be a number below 1"):
                explain(run, request)
        run.requests.ids = ["alpha"]
        with self.assertRaisesRegex(InputError, "did you mean 'alpha'"):
            explain(run, "alpa")
        self.assertEqual(explain(run, "alpha").index, 0)


if __name__ == "__main__":
    unittest.main()
