"""The textbook scheduler: vLLM's rules as plainly as they read, a loop over every request at every step.

It is the executable specification of servesim's scheduling and the oracle for the fast engine. It has real blocks in a
real free queue, real keys over token identities, and no shortcut of any kind. It knows nothing of how the engine works;
the two share only the contracts (limits, workload, records).

A step is: plan (running from the oldest, then the head of the queue), commit (`computed` moves), run (virtual time
passes), output (tokens are sampled, whoever is done releases slot and blocks). Asynchronous scheduling moves the output
of a step behind the plan of the next one and changes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from servesim.config.engine import RULES, EngineConfig
from servesim.cost.model import CostModel
from servesim.errors import RunError
from servesim.runs.records import EngineTotals, Outcome, Records, Run, StepLog
from servesim.workload.workload import Workload
from tests.reference_state import Batch, Block, Cache, Live, slices_of, token_identity, write_record


class Reference:
    """An engine in virtual time: `run()` drives the workload to its end, or to the time `until`."""

    def __init__(
        self,
        config: EngineConfig,
        cost: CostModel,
        workload: Workload,
        *,
        observer: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.config, self.cost, self.workload, self.observer = config, cost, workload, observer
        self.rules = RULES[config.rules]
        self.cache = Cache(config.num_blocks, self.rules)
        self.key_names: dict[tuple[int | None, tuple[Any, ...]], int] = {}
        self.now = 0.0
        self.waiting: list[Live] = []
        self.running: list[Live] = []
        self.unprocessed = Batch()  # asynchronous: the step whose output is still to come
        self.log = StepLog()
        self.totals = EngineTotals(num_blocks=config.num_blocks)
        self.records = Records(len(workload.requests))
        self.attempts: dict[int, int] = {}
        self.steps_observed = 0

    def run(self, until: float = math.inf) -> Run:
        """Run every step that starts before `until` and return what happened."""
        while True:
            if not self.running and not self.waiting:
                self.now = max(self.now, self.workload.next_due())
            if self.now >= until:
                break
            self.let_clients_leave(self.now)
            arrived = self.take_arrivals()
            if self.running or self.waiting:
                self.step(arrived)
        self.output(self.unprocessed)
        self.let_clients_leave(until)
        self.totals.evictions = self.cache.evictions
        for live in self.waiting + self.running:
            write_record(self.records, live, Outcome.UNFINISHED, None, live.target)
        for index in self.workload.withheld():
            self.records.outcome[index] = Outcome.WITHHELD
        return Run(
            source="simulated",
            requests=self.workload.requests,
            records=self.records,
            times=self.log.end_s,
            config={},
            steps=self.log,
            engine=self.totals,
        )

    # Arrivals and ends.

    def take_arrivals(self) -> list[int]:
        """Queue or reject what is due; return the indices of the queued ones."""
        arrived = []
        while self.workload.next_due() <= self.now:
            for index in self.workload.take(self.now):
                live = self.new_attempt(index)
                kind = self.reason_to_reject(live)
                if kind is None and live.deadline_s <= self.now:  # sent and given up within one step
                    self.end(live, Outcome.FAILED, "timeout", at=live.deadline_s)
                elif kind is None:
                    self.queue(live)
                    arrived.append(index)
                else:
                    self.end(live, Outcome.REJECTED, kind, at=self.now)
        return arrived

    def new_attempt(self, index: int) -> Live:
        requests, config = self.workload.requests, self.config
        arrival_s, prompt_tokens = requests.arrival_s[index], requests.prompt_tokens[index]
        self.attempts[index] = attempt = self.attempts.get(index, 0) + 1
        if attempt == 1:
            self.records.planned_s[index] = self.records.sent_s[index] = arrival_s
            self.records.prompt_tokens[index] = prompt_tokens
        else:
            self.records.attempts[index] = attempt
        target = requests.output_tokens[index]
        if config.max_model_len is not None:
            target = min(target, config.max_model_len - prompt_tokens)
        return Live(
            index=index,
            attempt=attempt,
            arrival_s=arrival_s,
            deadline_s=math.inf if config.client_timeout_s is None else arrival_s + config.client_timeout_s,
            prompt=prompt_tokens,
            target=target,
            content=() if requests.content is None else requests.content[index],
            priority=0 if requests.priority is None else requests.priority[index],
        )

    def reason_to_reject(self, live: Live) -> str | None:
        config = self.config
        total = live.prompt + live.target
        if config.max_model_len is not None and live.prompt >= config.max_model_len:
            return "prompt_too_long"
        if config.max_tokens_in_flight and total > config.max_tokens_in_flight:
            return "over_max_tokens_in_flight"
        if self.blocks_for(total - 1) > config.num_blocks:  # the last token is never computed
            return "over_kv_cache"
        if not config.chunked_prefill and total - 1 > config.max_num_batched_tokens:
            return "over_token_budget"
        if config.max_num_queued_reqs is not None and len(self.waiting) >= config.max_num_queued_reqs:
            return "queue_full"
        if config.max_num_queued_tokens is not None:
            queued = sum(other.prompt for other in self.waiting if not other.preempted)
            if queued + live.prompt > config.max_num_queued_tokens:
                return "queue_full"
        return None

    def let_clients_leave(self, now: float) -> None:
        """End the requests whose clients have lost patience by `now`; tokens after the deadline do not count."""
        impatient = [live for live in self.waiting + self.running if live.deadline_s <= now]
        for live in sorted(impatient, key=lambda live: (live.deadline_s, live.index)):
            if live.in_flight and self.unprocessed.end_s <= live.deadline_s:
                if live.ends_with_what_is_in_flight:
                    continue
                self.deliver_token(live, self.unprocessed)
            self.end(live, Outcome.FAILED, "timeout", at=live.deadline_s)

    def end(self, live: Live, outcome: Outcome, kind: str | None, at: float) -> None:
        """Take the request out of the engine and tell the workload; a client that comes back keeps its record open."""
        live.gone = True
        self.cache.release(live.blocks)
        live.blocks = []
        for members in (self.running, self.waiting):
            if live in members:
                members.remove(live)
        error = "rejected" if outcome is Outcome.REJECTED and kind != "queue_full" else kind
        if self.workload.finished(live.index, at, error):
            self.records.abandoned += slices_of(live.tokens)
        else:
            write_record(self.records, live, outcome, kind, self.workload.requests.output_tokens[live.index])

    # The waiting queue and its policies.

    def queue(self, live: Live) -> None:
        """Queue a new arrival, or a preempted request: in front of everybody, unless the policy has a key."""
        if self.config.policy == "priority":
            self.waiting.append(live)
            self.waiting.sort(key=rank_by_priority)
        elif self.config.policy == "sjf":
            self.waiting.append(live)
            self.waiting.sort(key=lambda live: (live.prompt + live.target, live.arrival_s, live.index))
        elif live.preempted:
            self.waiting.insert(0, live)
        else:
            self.waiting.append(live)

    def choose_victim(self) -> Live:
        if self.config.policy == "priority":
            return max(self.running, key=rank_by_priority)
        return self.running[-1]

    # One step.

    def step(self, arrived: list[int]) -> None:
        batch, previous = self.plan(), self.unprocessed
        if not (batch.planned or batch.preempted or previous.planned or arrived):
            raise RunError(f"request {self.waiting[0].index} can never be admitted")
        used = self.config.num_blocks - len(self.cache.free)
        started = self.now
        if batch.planned:
            self.commit(batch, used)
        if self.config.async_scheduling:
            finished = self.output(previous)
            self.unprocessed = batch
        else:
            finished = self.output(batch)
        if self.observer is not None:
            self.observer(self.observation(batch, arrived, finished, self.config.num_blocks - used))
        self.steps_observed += 1
        self.now = batch.end_s if batch.planned else started

    def plan(self) -> Batch:
        """Decide who gets how many tokens: the whole of `schedule()`, with all its blocks and keys."""
        batch = Batch()
        threshold = self.config.long_prefill_token_threshold
        if self.rules.threshold_spares_single and len(self.running) + len(self.waiting) == 1:
            threshold = 0
        budget = self.plan_running(batch, threshold)
        if not batch.preempted:
            self.plan_waiting(batch, threshold, budget)
        return batch

    def plan_running(self, batch: Batch, threshold: int) -> int:
        """Serve `running` in its order; return what is left of the token budget."""
        budget = self.config.max_num_batched_tokens
        i = 0
        while i < len(self.running) and budget > 0:
            live = self.running[i]
            if live.ends_with_what_is_in_flight:
                i += 1
                continue
            n = live.length + live.in_flight - live.computed
            if 0 < threshold < n:
                n = threshold
            n = min(n, budget)
            while self.blocks_for(live.computed + n) - len(live.blocks) > len(self.cache.free):
                victim = self.choose_victim()
                # One that was served stood before this one: undo it, and everybody moves up. vLLM moves nobody up for
                # one that got nothing (asynchronous: it waits for its last token), so that somebody is passed over.
                if victim in batch.planned:
                    budget += batch.planned.pop(victim)
                    i -= 1
                self.preempt(victim, batch)
                if victim is live:
                    return budget
            self.allocate(live, n)
            batch.planned[live] = n
            budget -= n
            i += 1
        return budget

    def plan_waiting(self, batch: Batch, threshold: int, budget: int) -> None:
        """Admit from the head of `waiting` until slots, budget or blocks end; a head that does not fit ends it."""
        config = self.config
        while budget > 0 and self.waiting and len(self.running) < config.max_num_seqs:
            live = self.waiting[0]
            hits = self.cache.find(self.keys(live, (live.length - 1) // config.block_size))
            cached = len(hits) * config.block_size
            n = live.length - cached
            if 0 < threshold < n:
                n = threshold
            if not config.chunked_prefill and n > budget:
                break
            n = min(n, budget)
            whole = self.rules.whole_sequence_must_fit and config.reserve_full_isl
            must_fit = min(live.length, config.max_model_len or live.length) if whole else cached + n
            lying = sum(hit.holders == 0 for hit in hits)
            spare = config.watermark_blocks if self.running else 0
            if max(self.blocks_for(must_fit) - len(hits), 0) + lying + spare > len(self.cache.free):
                break
            if config.max_tokens_in_flight:
                in_flight = sum(other.length + other.in_flight for other in self.running)
                if in_flight + live.length > config.max_tokens_in_flight:
                    break
            self.admit(live, hits, batch)
            self.allocate(live, n)
            batch.planned[live] = n
            budget -= n

    def admit(self, live: Live, hits: list[Block], batch: Batch) -> None:
        self.waiting.remove(live)
        self.running.append(live)
        for hit in hits:
            self.cache.hold(hit)
        live.blocks, live.keyed = hits, len(hits)
        live.computed = cached = len(hits) * self.config.block_size
        live.prefilling = True
        self.totals.saved_tokens += max(cached - live.computed_before, 0)
        batch.admitted.append(live)
        if self.config.prefix_caching:
            batch.lookups[live.index] = {"queries": live.length, "hits": cached}
        if live.preempted:
            batch.resumed.append(live)
            live.preempted[-1] = (live.preempted[-1][0], self.now)
            return
        live.admitted_s, live.cached = self.now, cached
        if self.config.prefix_caching:
            self.totals.looked_up_tokens += live.length
            self.totals.hit_tokens += cached

    def preempt(self, victim: Live, batch: Batch) -> None:
        """Drop all KV of a running request and queue it again; its known and its coming tokens stay its own."""
        self.running.remove(victim)
        self.cache.release(victim.blocks)
        victim.computed_before = max(victim.computed_before, victim.computed)
        victim.blocks, victim.keyed, victim.computed = [], 0, 0
        victim.preempted.append((self.now, math.nan))
        batch.preempted.append(victim)
        self.totals.preemptions += 1
        self.queue(victim)

    def commit(self, batch: Batch, used: int) -> None:
        """Move `computed` of everybody planned, find who samples, and let the step's time pass."""
        totals, log = self.totals, self.log
        batch.number = len(log)
        decodes = decoding = context = prefill = 0
        chunks = []
        for live, n in batch.planned.items():
            totals.recomputed_tokens += max(min(live.computed + n, live.computed_before) - live.computed, 0)
            live.computed += n
            if live.prefilling:
                chunks.append((n, live.computed))
                prefill += n
            else:
                decoding += 1
                context += live.computed
            totals.computed_tokens += n
            if live.computed == live.length + live.in_flight:
                live.in_flight += 1
                live.prefilling = False
                decodes += live.sampled_step == batch.number - 1
                live.sampled_step = batch.number
                batch.sampled.add(live)
        seconds = self.cost.step(decoding, context, chunks) if chunks else self.cost.decode(decoding, context)
        batch.end_s = self.now + seconds
        log.end_s.append(batch.end_s)
        log.decodes.append(decodes)
        log.prefill_tokens.append(prefill)
        log.kv_blocks.append(used)
        if self.now != totals.elapsed_s:
            log.starts[batch.number] = self.now
        totals.steps += 1
        totals.scheduled += len(batch.planned)
        totals.busy_s += seconds
        totals.elapsed_s = batch.end_s
        totals.kv_peak_blocks = max(totals.kv_peak_blocks, used)
        totals.kv_block_seconds += used * seconds

    def output(self, batch: Batch) -> list[int]:
        """Hand out a step's tokens in scheduling order; whoever has all of them releases slot and blocks."""
        finished = []
        for live in batch.planned:
            if live not in batch.sampled or not live.in_flight:
                continue
            if live.gone or batch.end_s > live.deadline_s:
                if live.tokens[-1:] == [batch.number - 1]:  # its gap is in the log, and nobody's
                    self.records.abandoned.append((batch.number - 1, batch.number))
                continue
            self.deliver_token(live, batch)
            if live in self.running:
                self.give_keys(live, live.computed - live.in_flight)
            if live.outputs == live.target:
                self.end(live, Outcome.COMPLETED, None, at=batch.end_s)
                finished.append(live.index)
        return finished

    def deliver_token(self, live: Live, batch: Batch) -> None:
        live.in_flight -= 1
        live.outputs += 1
        live.tokens.append(batch.number)

    # Blocks and keys.

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def allocate(self, live: Live, n: int) -> None:
        """Give `live` the blocks for its next `n` tokens, and keys to the blocks they fill with known tokens."""
        while len(live.blocks) < self.blocks_for(live.computed + n):
            live.blocks.append(self.cache.take())
        self.give_keys(live, min(live.computed + n, live.length))

    def give_keys(self, live: Live, tokens: int) -> None:
        full = tokens // self.config.block_size
        keys = self.keys(live, full)
        while live.keyed < len(keys):
            self.cache.give_key(live.blocks[live.keyed], keys[live.keyed])
            live.keyed += 1

    def keys(self, live: Live, count: int) -> list[int]:
        """Return the keys of the first `count` blocks: a key stands for all tokens up to its block's end."""
        if not self.config.prefix_caching:
            return []
        size = self.config.block_size
        while len(live.chain) < count:
            parent = live.chain[-1] if live.chain else None
            start = len(live.chain) * size
            tokens = tuple(token_identity(live, position) for position in range(start, start + size))
            live.chain.append(self.key_names.setdefault((parent, tokens), len(self.key_names)))
        return live.chain[:count]

    def observation(
        self, batch: Batch, arrived: list[int], finished: list[int], free_blocks_at_schedule: int
    ) -> dict[str, Any]:
        """Return one step in the shape of the golden traces, with indices for ids."""
        seen: dict[str, Any] = {
            "step": self.steps_observed,
            "arrived": arrived,
            "scheduled": {live.index: n for live, n in batch.planned.items()},
            "admitted": [live.index for live in batch.admitted],
            "resumed": [live.index for live in batch.resumed],
            "preempted": [live.index for live in batch.preempted],
            "finished": finished,
            "running": [live.index for live in self.running],
            "waiting": [live.index for live in self.waiting],
            "free_blocks": len(self.cache.free),
            "free_blocks_at_schedule": free_blocks_at_schedule,
        }
        if self.config.prefix_caching:
            seen["prefix"] = batch.lookups
        return seen


def rank_by_priority(live: Live) -> tuple[int, float, int]:
    """Lower is served first, higher is preempted first; the submission number settles every tie."""
    return live.priority, live.arrival_s, live.index
