"""Disaggregated prefill and decode: one pool of engines computes prompts, another generates, a link carries the KV.

A prefill engine computes the prompt and the first token. The prompt's KV (`prompt tokens x KV bytes per token`; the
first token has none yet) crosses the link; the source's blocks are free once it has arrived. What the decode engine
has in its prefix cache does not cross. Then the request queues at the decode engine, and its client receives the first
token at the start of the step that admits it there:

    TTFT = prefill queue + prefill + wait for the link + transfer + decode admission

No token is computed twice, unless the decode engine preempts: it then recomputes by itself. The decode engine is
chosen when the prompt is done.

The link over which KV goes from prefill to decode engines.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import Any

from servesim.config.fleet import LINK_SCOPES, TRANSFER_OVERLAPS
from servesim.engine.finalise import close_records
from servesim.engine.laws import broken_laws
from servesim.engine.sequence import Sequence
from servesim.errors import InputError
from servesim.fleet.fleet import Fleet, Kind
from servesim.fleet.merge import add_tiers, add_totals, append_log, facts_of, figures_of, merge_logs, targets_of
from servesim.fleet.replica import Replica
from servesim.fleet.router import ROUTERS
from servesim.runs.records import LinkTotals, Outcome, Records, Run
from servesim.units import suggest
from servesim.workload.workload import Workload


@dataclass(slots=True, kw_only=True)
class Link:
    """First come, first served: a transfer has the whole link, those behind it wait. `latency_s` is added to each
    transfer and does not keep the link busy.

    `bytes_per_s` is what the link carries of KV, protocol and copies included; infinite is allowed.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    scope: str = "shared"
    overlap: str = "none"
    moved_bytes: int = 0
    busy_s: float = 0.0
    transfers: int = 0
    _free_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0.0:
            raise InputError(f"link is {self.bytes_per_s} B/s, must be above 0")
        if not self.latency_s >= 0.0:
            raise InputError(f"link_latency is {self.latency_s} s, must be 0 or more")
        if self.scope not in LINK_SCOPES:
            raise suggest("link scope", self.scope, LINK_SCOPES)
        if self.overlap not in TRANSFER_OVERLAPS:
            raise suggest("transfer overlap", self.overlap, TRANSFER_OVERLAPS)

    def carry(
        self, source: int, target: int, size_bytes: int, ready_s: float, last_s: float = 0.0
    ) -> tuple[float, float]:
        """Send `size_bytes` that are ready from `ready_s` on; return when they set out and when the last has arrived.

        `last_s`: the moment before which the last byte cannot leave (a layer that is still being computed).
        """
        pair = (0, 0) if self.scope == "shared" else (source, target)
        start_s = max(ready_s, self._free_s.get(pair, 0.0))
        end_s = max(start_s + size_bytes / self.bytes_per_s, last_s)
        self._free_s[pair] = end_s
        self.moved_bytes += size_bytes
        self.transfers += 1
        self.busy_s += end_s - start_s
        return start_s, end_s + self.latency_s


FIRST_TOKEN = -2
"""Stands for the time of a first token in `Records.slices` until the run is closed: it is not the end of a step."""


class Disaggregation(Fleet):
    """Prefill replicas and decode replicas. `records` are those of the client; `prefill_end_s`, `link_start_s` (the
    rest of the KV that did not cross during the prefill sets out) and `transfer_end_s` are columns of their own, NaN
    where a request did not get so far."""

    def __init__(
        self,
        workload: Workload,
        prefill: Listing[Kind],
        decode: Listing[Kind],
        link: Link,
        *,
        kv_bytes_per_token: float,
        layers: int = 1,
        router: str = "least-loaded",
        seed: int = 7,
    ) -> None:
        size = len(workload.requests)
        self.link = link
        self.kv_bytes_per_token = kv_bytes_per_token
        self.layers = layers
        self.prefill_end_s = array("d", [math.nan]) * size
        self.link_start_s = self.prefill_end_s[:]
        self.transfer_end_s = self.prefill_end_s[:]
        self._client_records = Records(size)
        # By request, while its prompt is computed: (to, tokens promised there, tokens sent, set out, arrived).
        self._crossed: dict[int, tuple[Replica, int, int, float, float]] = {}
        one = array("q", [1]) * size
        super().__init__(workload, prefill, router=router, seed=seed, targets=one)
        self._reactive = True  # what one engine finishes arrives at another
        self._foresees = False  # and what it has computed of a prompt may be on its way before
        for replica in self.replicas:
            replica.engine.hand_over_prompts(self._hand_over_of(replica))
            if link.overlap != "none":
                replica.engine.on_chunks = self._chunks_of(replica)
        self.decode_replica_of = array("i", [0]) * size
        self.decoders = self.add_replicas(decode, self._client_records, self._hear_decoder)
        self._decode_router = ROUTERS[router](self.decoders, workload.requests, seed)
        self._limits = self.decoders[0].engine.limits

    def over(self) -> int:
        return self._client_records.over()

    # Requests, from the door to the decode engine

    def receive(self, index: int) -> None:
        requests = self.workload.requests
        prompt = requests.prompt_tokens[index]
        refusal = self._limits.refusal(prompt, prompt + self._limits.targets[index])
        if refusal is None:
            super().receive(index)
            return
        self._client_records.outcome[index] = Outcome.REJECTED
        self._client_records.reason[index] = refusal
        self._client_records.sent_s[index] = self._client_records.planned_s[index] = requests.arrival_s[index]
        self.workload.finished(index, requests.arrival_s[index], refusal)

    def _hear(self, replica: Replica, index: int, at: float, error: str | None) -> bool:
        """Hear of a prompt that is done, or of a request that ended before that."""
        if error is not None:
            return super()._hear(replica, index, at, error)
        self.at(at, self.count_off, replica)
        replica.engine.stop()
        return False

    def _hear_decoder(self, replica: Replica, index: int, at: float, error: str | None) -> bool:
        """Hear of an answer that is complete, or of a request that ended at its decode engine."""
        if error is None:
            return super()._hear(replica, index, at, error)
        replica.engine.forget_received(index)
        comes_back = super()._hear(replica, index, at, error)
        if comes_back:
            self._forget(replica, index)
        return comes_back

    def _forget(self, replica: Replica, index: int) -> None:
        """Strike what came of an attempt whose client will send its request again: prompt, transfer and answer."""
        prompts, records = self.records, self._client_records
        self.replicas[self.replica_of[index]].engine.totals.wasted_tokens += self.workload.requests.prompt_tokens[index]
        prompts.outcome[index] = Outcome.UNFINISHED
        prompts.first[index] = prompts.last[index] = -1
        prompts.preempted.pop(index, None)
        prompts.slices.pop(index, None)
        for column in (self.prefill_end_s, self.link_start_s, self.transfer_end_s, prompts.admitted_s):
            column[index] = math.nan
        replica.engine.arrivals.abandoned += [each for each in records.slices.pop(index, []) if each[0] >= 0]
        records.first[index] = records.last[index] = -1
        records.output_tokens[index] = 0

    def _hand_over_of(self, replica: Replica) -> Any:
        def hand_over(sequence: Sequence) -> None:
            self.at(replica.engine.now, self._prompt_done, replica, sequence, replica.engine.now)

        return hand_over

    def _chunks_of(self, replica: Replica) -> Any:
        def on_chunks(chunks: Listing[tuple[Sequence, int]], start_s: float, end_s: float) -> None:
            for sequence, tokens in chunks:
                if sequence.computed > sequence.high_water - tokens:
                    self.at(end_s, self._send_chunk, replica, sequence, sequence.computed, start_s, end_s)
            replica.engine.stop()

        return on_chunks

    def _target_of(self, sequence: Sequence, at: float) -> tuple[Replica, int]:
        """Choose where `sequence` will decode; return also how many of its tokens are there already."""
        if self._decode_router.looks_inside:
            for replica in self.decoders:
                self.bring_to(replica, at)
        target = self._decode_router.choose(sequence.index)
        self._counter += 1
        target.count_on(self._counter)
        promised = 0
        if target.engine.config.prefix_caching:
            self.bring_to(target, at)
            promised = target.engine.cached_tokens(self._arriving(sequence, target))
        return target, promised

    @staticmethod
    def _arriving(sequence: Sequence, target: Replica) -> Sequence:
        """Return `sequence` as a decode engine meets it: its prompt and its first token are known."""
        arriving = Sequence(sequence.index, sequence.prompt, target.engine.limits.targets[sequence.index])
        arriving.outputs = 1
        arriving.received = sequence.prompt
        return arriving

    def _send_chunk(self, source: Replica, sequence: Sequence, computed: int, start_s: float, end_s: float) -> None:
        index = sequence.index
        if index in self._crossed:
            target, promised, sent, started_s, arrived_s = self._crossed[index]
        else:
            (target, promised), started_s, arrived_s = self._target_of(sequence, end_s), 0.0, 0.0
            sent = promised
        if computed > sent:
            size = round((computed - sent) * self.kv_bytes_per_token)
            ready_s, last_s = end_s, 0.0
            if self.link.overlap == "layer":
                ready_s = start_s + (end_s - start_s) / self.layers
                last_s = end_s + size / self.layers / self.link.bytes_per_s
            started_s, arrived_s = self.link.carry(source.number, target.number, size, ready_s, last_s)
            sent = computed
        self._crossed[index] = target, promised, sent, started_s, arrived_s

    def _prompt_done(self, source: Replica, sequence: Sequence, at: float) -> None:
        index = sequence.index
        self.prefill_end_s[index] = at
        if index in self._crossed:
            target, promised, sent, started_s, arrived_s = self._crossed.pop(index)
            started_s, arrived_s = max(started_s, at), max(arrived_s, at)
        else:
            target, promised = self._target_of(sequence, at)
            sent, started_s, arrived_s = promised, at, at
        if sent < sequence.prompt:
            size = round((sequence.prompt - sent) * self.kv_bytes_per_token)
            started_s, arrived_s = self.link.carry(source.number, target.number, size, at)
        self.link_start_s[index] = started_s
        source.engine.free_at(arrived_s, sequence)
        self.reschedule(source)
        self.at(arrived_s, self._arrive, sequence, target, promised, arrived_s)

    def _arrive(self, sequence: Sequence, target: Replica, promised: int, at: float) -> None:
        index = sequence.index
        self.transfer_end_s[index] = at
        arriving = self._arriving(sequence, target)
        arriving.promised = promised
        target.engine.receive(arriving)
        self._client_records.slices[index] = [(FIRST_TOKEN, FIRST_TOKEN)]
        self._client_records.first[index] = self._client_records.last[index] = FIRST_TOKEN
        self.decode_replica_of[index] = target.number
        target.send(at, index)
        self.reschedule(target)

    # The end

    def run(self, config: dict[str, Any] | None = None) -> Run:
        for replica in [*self.replicas, *self.decoders]:
            replica.engine.until = self.until
            replica.engine.drain()
        requests, prompts, records = self.workload.requests, self.records, self._client_records
        prefill_log = merge_logs(self.replicas, self.replica_of, prompts)
        decode_log = merge_logs(self.decoders, self.decode_replica_of, records)
        live = {index for replica in self.replicas for index in replica.engine.live_indices()}
        close_records(prompts, self.workload, requests.output_tokens, live | self._gone_on())
        violations = broken_laws(facts_of(self.replicas, self.workload, prompts, prefill_log, away=True))
        decode_start_s = records.admitted_s
        self._take_over(prompts, records)
        close_records(records, self.workload, targets_of(self.decoders, self.decode_replica_of), set())
        for column in ("planned_s", "sent_s"):
            refused = getattr(records, column)  # those whom nobody but the door has seen
            sent = (own if own == own else mine for own, mine in zip(getattr(prompts, column), refused, strict=True))
            setattr(records, column, array("d", sent))
        violations += broken_laws(facts_of(self.decoders, self.workload, records, decode_log, away=True))
        log = decode_log
        append_log(log, prefill_log)
        times = log.end_s[:]
        for index, start_s in enumerate(decode_start_s):
            if records.first[index] == FIRST_TOKEN:
                self._place_first_token(records, index, start_s, times)
        totals = add_totals([*self.replicas, *self.decoders])
        figures = [figures_of(replica, totals.elapsed_s, "prefill") for replica in self.replicas]
        figures += [figures_of(replica, totals.elapsed_s, "decode") for replica in self.decoders]
        return Run(
            source="simulated",
            requests=requests,
            records=records,
            times=times,
            config=config or {},
            steps=log,
            engine=totals,
            replicas=figures,
            stages={
                "prefill_end_s": self.prefill_end_s,
                "link_start_s": self.link_start_s,
                "transfer_end_s": self.transfer_end_s,
                "decode_start_s": decode_start_s,
            },
            replica_of={"prefill_replica": self.replica_of, "decode_replica": self.decode_replica_of},
            link=self._link_figures(totals.elapsed_s),
            offload=add_tiers([*self.replicas, *self.decoders]),
            violations=violations,
        )

    def _link_figures(self, elapsed_s: float) -> LinkTotals:
        """Return what crossed the link; `busy` is the share of the run for which one of its pairs carried something."""
        pairs = 1 if self.link.scope == "shared" else len(self.replicas) * len(self.decoders)
        return LinkTotals(
            moved_bytes=self.link.moved_bytes,
            transfers=self.link.transfers,
            busy_s=self.link.busy_s,
            busy=self.link.busy_s / (pairs * elapsed_s) if elapsed_s else 0.0,
        )

    def _gone_on(self) -> set[int]:
        return {index for index, end_s in enumerate(self.prefill_end_s) if end_s == end_s}

    @staticmethod
    def _place_first_token(records: Records, index: int, start_s: float, times: array[float]) -> None:
        """Give the first token, handed out at the start of the step that admits the request, a time of its own."""
        slices = records.slices.pop(index, [(FIRST_TOKEN, FIRST_TOKEN)])
        if start_s != start_s:  # not admitted yet
            records.first[index] = records.last[index] = -1
            records.output_tokens[index] = 0
            return
        at = len(times)
        times.append(start_s)
        slices[0] = (at, at)
        records.first[index] = at
        records.last[index] = slices[-1][1] if len(slices) > 1 else at
        if len(slices) > 1:
            records.slices[index] = slices

    @staticmethod
    def _take_over(prompts: Records, records: Records) -> None:
        """Bring what the prefill engines know of the requests into the client's records."""
        records.admitted_s = prompts.admitted_s
        records.cached_tokens = prompts.cached_tokens
        records.attempts = prompts.attempts
        for index, outcome in enumerate(prompts.outcome):
            if outcome in (Outcome.FAILED, Outcome.REJECTED) and records.outcome[index] == Outcome.UNFINISHED:
                records.outcome[index] = outcome
        records.reason.update(
            (index, reason) for index, reason in prompts.reason.items() if index not in records.reason
        )
        for index, spans in prompts.preempted.items():
            records.preempted[index] = spans + records.preempted.get(index, [])
