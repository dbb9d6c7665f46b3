"""The plan of a load: who is due when, in every kind of loop, and nobody is lost."""

from __future__ import annotations

import math
import random
import unittest
from array import array

from servesim.errors import InputError
from servesim.workload.requests import Requests
from servesim.workload.workload import ClosedLoop, OpenLoop, Retrying, SessionLoop, Workload


def requests_of(size: int, arrivals: list[float] | None = None) -> Requests:
    requests = Requests()
    requests.prompt_tokens = array("q", [10]) * size
    requests.output_tokens = array("q", [5]) * size
    requests.arrival_s = array("d", [math.nan] * size if arrivals is None else arrivals)
    return requests


def sessions_of(turns: list[tuple[str | None, int, float, float]]) -> Requests:
    """Return requests of (session, turn, arrival_s, think_s)."""
    requests = requests_of(len(turns), [arrival_s for _, _, arrival_s, _ in turns])
    requests.sessions = [session for session, _, _, _ in turns]
    requests.turns = array("q", [turn for _, turn, _, _ in turns])
    requests.think_s = array("d", [think_s for _, _, _, think_s in turns])
    return requests


def serve(workload: Workload, service_s: float = 1.0, errors: dict[int, list[str]] | None = None) -> list[tuple]:
    """Serve every request in `service_s` from when it is due, without a queue; return (time, what, index)."""
    errors = errors or {}
    log: list[tuple] = []
    ends: list[tuple[float, int]] = []
    while True:
        now = min([workload.next_due(), *(at for at, _ in ends)])
        if now == math.inf:
            return log
        for end in sorted(end for end in ends if end[0] <= now):
            ends.remove(end)
            at, index = end
            error = errors[index].pop(0) if errors.get(index) else None
            back = workload.finished(index, at, error)
            log.append((at, "back" if back else error or "done", index))
        for index in workload.take(now):
            assert workload.requests.arrival_s[index] <= now
            log.append((workload.requests.arrival_s[index], "due", index))
            ends.append((now + service_s, index))


NAN = math.nan


class OpenLoopTest(unittest.TestCase):
    def test_requests_are_due_at_their_times_and_equal_times_keep_their_order(self) -> None:
        workload = OpenLoop(requests_of(4, [0.0, 1.0, 1.0, 2.5]))
        self.assertEqual(workload.next_due(), 0.0)
        self.assertEqual(workload.take(0.5), range(1))
        self.assertEqual(workload.take(0.5), range(1, 1))
        self.assertEqual(workload.next_due(), 1.0)
        self.assertEqual(workload.take(1.0), range(1, 3))
        self.assertEqual(workload.take(9.0), range(3, 4))
        self.assertEqual(workload.next_due(), math.inf)
        self.assertEqual(workload.take(math.inf), range(4, 4))

    def test_taking_at_the_end_of_time_takes_all(self) -> None:
        workload = OpenLoop(requests_of(3, [0.0, 1.0, 2.0]))
        self.assertEqual(workload.take(math.inf), range(3))
        self.assertEqual(workload.next_due(), math.inf)

    def test_an_end_makes_nothing_due(self) -> None:
        workload = OpenLoop(requests_of(1, [0.0]))
        workload.take(0.0)
        self.assertFalse(workload.reactive)
        self.assertFalse(workload.finished(0, 1.0, "timeout"))
        self.assertEqual(workload.next_due(), math.inf)

    def test_nothing_is_due_after_the_duration_and_the_rest_is_withheld(self) -> None:
        workload = OpenLoop(requests_of(4, [0.0, 1.0, 2.0, 3.0]), duration_s=2.0)
        self.assertEqual(workload.take(math.inf), range(3))
        self.assertEqual(list(workload.withheld()), [3])

    def test_times_out_of_order_or_negative_are_refused(self) -> None:
        for arrivals in ([1.0, 0.5], [-1.0, 0.0], [math.nan, 1.0], [0.0, math.nan]):
            with self.subTest(arrivals=arrivals), self.assertRaises(InputError):
                OpenLoop(requests_of(2, arrivals))

    def test_no_requests_are_no_trouble(self) -> None:
        for workload in (OpenLoop(requests_of(0)), ClosedLoop(requests_of(0), 3), SessionLoop(requests_of(0))):
            self.assertEqual(workload.next_due(), math.inf)
            self.assertEqual(list(workload.take(math.inf)), [])


class ClosedLoopTest(unittest.TestCase):
    def test_each_end_releases_the_next_at_that_instant(self) -> None:
        workload = ClosedLoop(requests_of(4), 2)
        self.assertEqual(workload.take(0.0), range(2))
        self.assertEqual(workload.next_due(), math.inf)
        workload.finished(1, 3.25)
        self.assertEqual(workload.next_due(), 3.25)
        self.assertEqual(workload.take(3.0), range(2, 2))
        self.assertEqual(workload.take(4.0), range(2, 3))
        self.assertEqual(workload.requests.arrival_s[2], 3.25)

    def test_a_failure_releases_the_next_like_a_completion(self) -> None:
        log = serve(ClosedLoop(requests_of(3), 1), errors={0: ["timeout"], 1: ["rejected"]})
        self.assertEqual([at for at, what, _ in log if what == "due"], [0.0, 1.0, 2.0])

    def test_a_hundred_and_one_requests_over_seven_clients_are_a_hundred_and_one(self) -> None:
        log = serve(ClosedLoop(requests_of(101), 7))
        self.assertEqual(sorted(index for _, what, index in log if what == "due"), list(range(101)))

    def test_never_more_in_flight_than_the_concurrency(self) -> None:
        flying = most = 0
        for _, what, _ in serve(ClosedLoop(requests_of(50), 7)):
            flying += 1 if what == "due" else -1
            most = max(most, flying)
        self.assertEqual(most, 7)

    def test_ends_that_are_told_out_of_order_are_due_in_order(self) -> None:
        workload = ClosedLoop(requests_of(6), 3)
        workload.take(0.0)
        for index, at in ((0, 5.0), (1, 4.0), (2, 4.5)):
            workload.finished(index, at)
        self.assertEqual(workload.take(9.0), range(3, 6))
        self.assertEqual(list(workload.requests.arrival_s[3:]), [4.0, 4.5, 5.0])

    def test_the_first_wave_can_be_spread(self) -> None:
        workload = ClosedLoop(requests_of(9), 4, stagger_s=2.0)
        self.assertEqual(workload.take(1.0), range(3))
        self.assertEqual(list(workload.requests.arrival_s[:3]), [0.0, 0.5, 1.0])

    def test_ends_after_the_duration_release_nobody(self) -> None:
        workload = ClosedLoop(requests_of(100), 2, duration_s=3.0)
        log = serve(workload)
        self.assertEqual(sum(what == "due" for _, what, _ in log), 8)
        self.assertEqual(list(workload.withheld()), list(range(8, 100)))

    def test_a_concurrency_of_nothing_is_refused(self) -> None:
        with self.assertRaises(InputError):
            ClosedLoop(requests_of(1), 0)


class SessionLoopTest(unittest.TestCase):
    def test_a_turn_is_due_when_its_reader_has_thought_or_later_if_the_trace_says_so(self) -> None:
        turns = [("a", 1, 0.0, 0.0), ("a", 2, NAN, 2.0), ("a", 3, 10.0, 1.0), ("a", 4, 0.0, 0.5)]
        log = serve(SessionLoop(sessions_of(turns)))
        self.assertEqual([at for at, what, _ in log if what == "due"], [0.0, 3.0, 10.0, 11.5])

    def test_a_session_goes_on_after_a_turn_that_failed(self) -> None:
        turns = [("a", 1, 0.0, 0.0), ("a", 2, NAN, 2.0), ("a", 3, NAN, 2.0)]
        log = serve(SessionLoop(sessions_of(turns)), errors={0: ["timeout"], 1: ["rejected"]})
        self.assertEqual([at for at, what, _ in log if what == "due"], [0.0, 3.0, 6.0])

    def test_turns_follow_their_numbers_not_their_lines(self) -> None:
        turns = [("a", 2, NAN, 0.0), ("b", 1, 0.5, 0.0), ("a", 1, 0.0, 0.0)]
        log = serve(SessionLoop(sessions_of(turns)))
        self.assertEqual([index for _, what, index in log if what == "due"], [2, 1, 0])

    def test_lone_requests_and_sessions_mix(self) -> None:
        turns = [("a", 1, 0.0, 0.0), (None, 0, 1.0, 0.0), ("a", 2, NAN, 0.0)]
        log = serve(SessionLoop(sessions_of(turns)))
        self.assertEqual([(at, index) for at, what, index in log if what == "due"], [(0.0, 0), (1.0, 1), (1.0, 2)])

    def test_a_closed_loop_of_sessions_holds_so_many_and_no_more(self) -> None:
        turns = [(f"s{session}", turn, NAN, 1.0 if turn > 1 else 0.0) for session in range(5) for turn in (1, 2)]
        log = serve(SessionLoop(sessions_of(turns), concurrency=2))
        due = [(at, index) for at, what, index in log if what == "due"]
        self.assertEqual(
            due,
            [(0.0, 0), (0.0, 2), (2.0, 1), (2.0, 3), (3.0, 4), (3.0, 6), (5.0, 5), (5.0, 7), (6.0, 8), (8.0, 9)],
        )

    def test_a_closed_loop_forgets_the_arrivals_of_a_trace(self) -> None:
        turns = [("a", 1, 50.0, 0.0), ("a", 2, 90.0, 2.0)]
        log = serve(SessionLoop(sessions_of(turns), concurrency=1))
        self.assertEqual([at for at, what, _ in log if what == "due"], [0.0, 3.0])

    def test_turns_after_the_duration_are_withheld_with_all_that_follow(self) -> None:
        turns = [("a", 1, 0.0, 0.0), ("a", 2, NAN, 5.0), ("a", 3, NAN, 0.0), (None, 0, 2.0, 0.0), (None, 0, 4.0, 0.0)]
        workload = SessionLoop(sessions_of(turns), duration_s=3.0)
        serve(workload)
        self.assertEqual(list(workload.withheld()), [1, 2, 4])

    def test_a_first_turn_without_a_time_is_refused_in_an_open_loop(self) -> None:
        with self.assertRaises(InputError):
            SessionLoop(sessions_of([("a", 1, NAN, 0.0)]))


class RetryingTest(unittest.TestCase):
    def test_a_client_comes_back_after_a_pause_that_doubles(self) -> None:
        workload = Retrying(OpenLoop(requests_of(1, [0.0])), retries=3, backoff_s=0.5)
        log = serve(workload, errors={0: ["timeout", "queue_full", "timeout"]})
        self.assertEqual([at for at, what, _ in log if what == "due"], [0.0, 1.5, 3.5, 6.5])
        self.assertEqual(log[-1], (7.5, "done", 0))
        self.assertEqual(workload.attempts, {0: 4})

    def test_the_last_attempt_is_the_end(self) -> None:
        workload = Retrying(OpenLoop(requests_of(1, [0.0])), retries=1, backoff_s=0.5)
        log = serve(workload, errors={0: ["timeout"] * 5})
        self.assertEqual([what for _, what, _ in log], ["due", "back", "due", "timeout"])

    def test_what_is_too_big_does_not_come_back(self) -> None:
        for kind in ("rejected", "over_kv_cache", "prompt_too_long"):
            workload = Retrying(OpenLoop(requests_of(1, [0.0])), retries=3, backoff_s=0.5)
            self.assertEqual(serve(workload, errors={0: [kind]})[-1], (1.0, kind, 0))

    def test_a_closed_loop_keeps_the_place_of_a_client_that_will_come_back(self) -> None:
        workload = Retrying(ClosedLoop(requests_of(2), 1), retries=1, backoff_s=4.0)
        log = serve(workload, errors={0: ["timeout"]})
        self.assertEqual([(at, index) for at, what, index in log if what == "due"], [(0.0, 0), (5.0, 0), (6.0, 1)])

    def test_retries_and_new_requests_of_one_instant_come_by_number(self) -> None:
        workload = Retrying(OpenLoop(requests_of(3, [0.0, 0.0, 2.0])), retries=1, backoff_s=1.0)
        self.assertEqual(list(workload.take(0.0)), [0, 1])
        workload.finished(1, 1.0, "timeout")
        workload.finished(0, 1.0, "timeout")
        self.assertEqual(workload.next_due(), 2.0)
        self.assertEqual(list(workload.take(2.0)), [0, 1, 2])

    def test_negative_retries_are_refused(self) -> None:
        for retries, backoff_s in ((-1, 1.0), (1, -1.0), (1, math.nan), (1, math.inf)):
            with self.subTest(retries=retries, backoff_s=backoff_s), self.assertRaises(InputError):
                Retrying(OpenLoop(requests_of(0)), retries=retries, backoff_s=backoff_s)


class AnyWorkloadTest(unittest.TestCase):
    def test_every_request_ends_once_or_is_withheld_and_due_times_never_go_back(self) -> None:
        for seed in range(200):
            with self.subTest(seed=seed):
                rng = random.Random(seed)
                size = rng.randint(1, 30)
                clock, turns = 0.0, []
                counts: dict[str, int] = {}
                for _ in range(size):
                    clock += rng.choice((0.0, rng.random()))
                    session = rng.choice((None, "a", "b", "c"))
                    turn = 0 if session is None else counts.get(session, 0) + 1
                    if session is not None:
                        counts[session] = turn
                    later = turn > 1
                    turns.append((session, turn, NAN if later else clock, rng.random() if later else 0.0))
                duration_s = rng.choice((None, 2.0))
                loop: Workload
                match rng.randrange(4):
                    case 0:
                        loop = OpenLoop(
                            requests_of(size, sorted(rng.random() * 5 for _ in turns)), duration_s=duration_s
                        )
                    case 1:
                        loop = ClosedLoop(requests_of(size), rng.randint(1, 5), duration_s=duration_s)
                    case 2:
                        loop = SessionLoop(sessions_of(turns), duration_s=duration_s)
                    case _:
                        loop = SessionLoop(sessions_of(turns), concurrency=rng.randint(1, 3), duration_s=duration_s)
                workload = Retrying(loop, retries=rng.randint(0, 2), backoff_s=rng.random())
                errors = {index: ["timeout"] * rng.randint(0, 3) for index in range(size)}
                log = serve(workload, rng.choice((0.0, 0.3)) + 1e-3, errors)
                over = [index for _, what, index in log if what not in ("due", "back")]
                self.assertEqual(sorted([*over, *workload.withheld()]), list(range(size)))
                due = [at for at, what, _ in log if what == "due"]
                self.assertEqual(due, sorted(due))


if __name__ == "__main__":
    unittest.main()
