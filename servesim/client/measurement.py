"""A measurement from start to record: is the server there, warm-up, the run, `/metrics` around it, its file.

A `Measurer` measures one server as often as needed (repeats, the rows of a grid, the probes of a search) and keeps
what one run teaches for the next: open connections, the tokens that a word costs, the server's setup.

A `LiveFile` is written while the run goes on: a crash or `kill -9` loses nothing that had finished. A full disk does
not end the measurement: the file stops there, the run goes on to its report, and the error is reported at the end.
"""

from __future__ import annotations

import json
import math
import secrets
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from servesim.catalog.servers import dialect_of
from servesim.client.fetch import check_reachable, wait_ready
from servesim.client.flavour import flavour_of, request_options
from servesim.client.loop import Timeouts
from servesim.client.processes import measure_in_processes
from servesim.client.prompts import FixedPrompts, GivenPrompt, Prompts, SyntheticPrompts, TokenRate, prompt_accuracy
from servesim.client.requests import Conversations, Payload
from servesim.client.run import LoadGenerator, Progress, Watchers
from servesim.client.scraper import RawPage, Scraper
from servesim.client.setup import pick_model, read_setup
from servesim.client.shares import deal
from servesim.client.target import target_of
from servesim.client.window import gauge_sample, server_window, wanted_names
from servesim.config.loadgen import LoadSpec
from servesim.config.workload import WorkloadSpec, drive, load_requests
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.runs.records import Outcome, Records, Run
from servesim.runs.writer import RunWriter
from servesim.workload.requests import Requests
from servesim.workload.workload import ClosedLoop, Workload


def path_beside(path: str, label: str) -> str:
    """Return the path of one of several runs: `label` goes before the last suffix.

    >>> path_beside("out/run.jsonl", "concurrency-8")
    'out/run.concurrency-8.jsonl'
    """
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.{label}{whole.suffix}"))


class LiveFile:
    """Writes one run as it happens. `error` is the first failure to write, None while all is well."""

    def __init__(self, path: str) -> None:
        self.error: RunError | None = None
        self._writer = RunWriter(path, live=True)

    def begin(self, config: dict[str, Any], setup: dict[str, Any], warmup: Run | None) -> None:
        """Write the header and the warm-up, before the first request is sent."""
        try:
            self._writer.header(Run("measured", Requests(), Records(0), array("d"), config, setup=setup), "loadgen")
            for index in range(0 if warmup is None else len(warmup.records)):
                assert warmup is not None
                self._writer.request(warmup, index, kind="warmup")
        except RunError as error:
            self.error = self.error or error

    def request(self, run: Run, index: int) -> None:
        """Write a request that is over."""
        if self.error is None:
            try:
                self._writer.request(run, index)
            except RunError as error:
                self.error = error

    def written_elsewhere(self, count: int) -> None:
        """Count requests that forked processes wrote into the same file."""
        self._writer.requests += count

    def end(self, run: Run) -> None:
        """Write what is known only now, and close the file."""
        try:
            if self.error is None:
                self._writer.gauges(run)
                self._writer.footer(run)
            self._writer.close()
        except RunError as error:
            self.error = self.error or error

    def abandon(self) -> None:
        """Close the file as it is: it reads back as cut."""
        try:
            self._writer.close()
        except RunError as error:
            self.error = self.error or error


LANDED_SHARE = 0.95  # fewer prompts than this within the tolerance are warned of


class Measurer:
    """Measures one server. Close it, or use it in a `with` block.

    Raises RunError where nobody is there: a refused connection, a name that does not resolve, not ready in time.
    """

    def __init__(
        self,
        load: LoadSpec,
        given: list[GivenPrompt] | None = None,
        *,
        interrupts: Interrupts,
        waiting: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.load = load
        self.target = target_of(load)
        if load.wait_ready_s:
            wait_ready(self.target, load.wait_ready_s, waiting=waiting)
        else:
            check_reachable(self.target)
        self.flavour = flavour_of(load)
        discover = load.model is None and self.flavour.needs_model
        self.model = pick_model(self.target) if discover else load.model
        self.salt = load.prompt_salt or secrets.token_hex(4)
        self.rate = TokenRate()
        self.setup: dict[str, Any] | None = None
        self._given = given
        self._interrupts = interrupts
        self._serial = 0  # requests so far: no two have the same text
        self._generator: LoadGenerator | None = None

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        if self._generator is not None:
            self._generator.close()
            self._generator = None

    def config(self, spec: WorkloadSpec) -> dict[str, Any]:
        """Return the effective configuration: the same load again, from itself."""
        return {**spec.as_dict(), **self.load.as_dict(), "model": self.model, "prompt_salt": self.salt}

    def measure(
        self,
        spec: WorkloadSpec,
        *,
        warmup: int,
        config: dict[str, Any] | None = None,
        file: LiveFile | None = None,
        progress: Callable[[Progress], None] | None = None,
        filed: Callable[[Run, int], None] | None = None,
        requests: Requests | None = None,
    ) -> Run:
        """Warm up, then measure `spec` once. `file` gets every record as it is complete, and so does `filed`.

        `requests` are those of `spec`, where they have been loaded already (a trace that several runs replay).
        """
        config = self.config(spec) if config is None else config
        requests = self._requests(spec) if requests is None else requests
        workload = drive(spec, requests)
        warm = self._warm_up(requests, warmup, config) if warmup else None
        scraper = Scraper(self.target)
        scraper.first()
        if self.setup is None:
            self.setup = read_setup(self.target, scraper.pages[0] if scraper.offered else None)
        if file is not None:
            file.begin(config, self.setup, warm)
        started = 0.0

        def start() -> float:
            nonlocal started
            scraper.start()
            started = monotonic()
            return started

        prompts = self._prompts(requests)
        conversations = None
        if requests.sessions is not None and isinstance(prompts, SyntheticPrompts):
            conversations = Conversations(prompts)
        payload = self._payload(requests, conversations or prompts)
        watchers = Watchers(progress=progress, filed=filed)
        if file is not None:
            hear = file.request if filed is None else _both(file.request, filed)
            watchers = Watchers(progress=progress, filed=hear, filed_elsewhere=file.written_elsewhere)
        try:
            if self.load.processes > 1:
                run = self._measure_in_processes(spec, requests, payload, config, conversations, watchers, start)
            else:
                run = self._connected().measure(
                    workload,
                    payload,
                    config=config,
                    concurrency=spec.concurrency,
                    conversations=conversations,
                    watchers=watchers,
                    start=start,
                )
        except BaseException:
            scraper.stop()
            if file is not None:
                file.abandon()
            raise
        self._attach(run, scraper.stop(), started, warm)
        if file is not None:
            file.end(run)
        return run

    def _measure_in_processes(
        self,
        spec: WorkloadSpec,
        requests: Requests,
        payload: Payload,
        config: dict[str, Any],
        conversations: Conversations | None,
        watchers: Watchers,
        start: Callable[[], float],
    ) -> Run:
        def build(share: Requests, concurrency: int) -> Workload:
            return drive(replace(spec, concurrency=concurrency) if concurrency else spec, share)

        def begun(run: Run) -> None:
            start()

        self.close()  # neither threads nor sockets are forked
        return measure_in_processes(
            deal(requests, build, workers=self.load.processes, concurrency=spec.concurrency),
            requests,
            payload,
            make=self._connect,
            config=config,
            concurrency=spec.concurrency,
            conversations=conversations,
            watchers=replace(watchers, begun=begun),
            interrupts=self._interrupts,
        )

    def _connect(self, interrupts: Interrupts) -> LoadGenerator:
        load = self.load
        return LoadGenerator(
            self.target,
            self.flavour,
            stream=not load.no_stream,
            timeouts=Timeouts(
                idle_s=load.idle_timeout_s,
                total_s=math.inf if load.client_timeout_s is None else load.client_timeout_s,
            ),
            grace_s=load.grace_s,
            interrupts=interrupts,
        )

    def _connected(self) -> LoadGenerator:
        if self._generator is None:
            self._generator = self._connect(self._interrupts)
        return self._generator

    def _requests(self, spec: WorkloadSpec) -> Requests:
        requests = load_requests(spec)
        if self._given is not None:
            lengths = [each.output_tokens for each in self._given]
            for index in range(len(requests)):
                length = lengths[index % len(lengths)]
                if length is not None:
                    requests.output_tokens[index] = length
        return requests

    def _prompts(self, requests: Requests) -> Prompts:
        if self._given is not None:
            return FixedPrompts(tuple(each.prompt for each in self._given))
        first = self._serial
        self._serial += len(requests)
        return SyntheticPrompts(requests, self.rate, salt=self.salt, first_serial=first)

    def _payload(self, requests: Requests, prompts: Prompts | Conversations) -> Payload:
        build, options = self.flavour.build_body, request_options(self.load, self.model)
        output_tokens = requests.output_tokens

        def payload(index: int) -> bytes:
            body = build(prompts.prompt(index), replace(options, max_tokens=output_tokens[index]))
            # Half of a surrogate pair, as a server's escapes may cut it in a stream, goes out as its escape.
            return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")

        return payload

    def _warm_up(self, requests: Requests, count: int, config: dict[str, Any]) -> Run | None:
        """Send `count` requests one after the other, the shortest and the longest prompt in turn; learn from usage.

        They share no content with the measured ones, whose first lookups should find what they would without them.
        """
        if not len(requests):
            return None
        lengths = requests.prompt_tokens
        ends = (min(range(len(lengths)), key=lengths.__getitem__), max(range(len(lengths)), key=lengths.__getitem__))
        runs = []
        for number in range(count):
            one = Requests()
            one.prompt_tokens.append(lengths[ends[number % 2]])
            one.output_tokens.append(requests.output_tokens[ends[number % 2]])
            one.arrival_s.append(0.0)
            prompts = self._prompts(one)
            payload = self._payload(one, prompts)
            run = self._connected().measure(ClosedLoop(one, 1), payload, config=config, concurrency=1)
            if self._interrupts.asked:
                raise KeyboardInterrupt
            if run.records.outcome[0] == Outcome.COMPLETED and not _guessed(run):
                prompts.learn(0, run.records.prompt_tokens[0])
            runs.append(run)
        return _joined(runs)

    def _attach(self, run: Run, raw: list[RawPage], started: float, warm: Run | None) -> None:
        """Add to a run what was learned around it."""
        run.setup = dict(self.setup or {})
        run.warmup = warm
        pages = [page.parse(wanted_names()) for page in raw]
        if len(pages) > 1 and dialect_of([*pages[0].samples, *pages[-1].samples]) is not None:
            run.server = server_window(pages[0], pages[-1], pages[1:-1], version=run.setup.get("version"))
        for page in pages:
            sample = gauge_sample(page)
            if sample is not None:
                sample.at_s -= started
                run.gauges.append(sample)
        run.warnings += self._warnings(run)

    def _warnings(self, run: Run) -> list[str]:
        records, requests = run.records, run.requests
        warnings = []
        done = [index for index, outcome in enumerate(records.outcome) if outcome == Outcome.COMPLETED]
        counted = [index for index in done if not records.extra.get(index, {}).get("estimated")]
        if self._given is None and counted:
            accuracy = prompt_accuracy(
                [requests.prompt_tokens[index] for index in counted],
                [records.prompt_tokens[index] for index in counted],
            )
            if accuracy is not None and accuracy.within_tolerance < LANDED_SHARE:
                warnings.append(
                    f"only {accuracy.within_tolerance:.0%} of the prompts are within 1 % (or 2 tokens) of the asked "
                    f"length, the worst is off by {accuracy.max_error_tokens:,}"
                    + self._remedy(min(requests.prompt_tokens))
                )
        if done and not counted:
            warnings.append("the server reports no usage: output tokens are counted from events, prompts not at all")
        extra = [records.extra.get(index, {}) for index in done]
        whole = sum(bool(each.get("non_stream")) for each in extra)
        if whole and not self.load.no_stream and self.flavour.stream_format != "json":
            warnings.append(f"{whole:,} of {len(done):,} answers came whole, not as streams: their TTFT is unknown")
        if malformed := sum(each.get("malformed_events", 0) for each in extra):
            warnings.append(f"{malformed:,} events were not the JSON that they should be")
        short = sum(records.output_tokens[index] < requests.output_tokens[index] for index in counted)
        if short:
            warnings.append(
                f"{short:,} of {len(done):,} answers are shorter than asked"
                + ("" if self.load.ignore_eos else "; --ignore-eos makes most servers go on")
            )
        return warnings

    def _remedy(self, shortest: int) -> str:
        """Say why prompts could miss their length."""
        if not self.rate.learned:
            return "; warm-up requests would have taught the length of a word"
        if shortest <= self.rate.overhead:
            chat = "; --api completions has no chat template" if self.load.api == "chat" else ""
            return f"; the server adds {self.rate.overhead:.0f} to every prompt{chat}"
        return ""


def _both(one: Callable[[Run, int], None], other: Callable[[Run, int], None]) -> Callable[[Run, int], None]:
    def hear(run: Run, index: int) -> None:
        one(run, index)
        other(run, index)

    return hear


def _guessed(run: Run) -> bool:
    return bool(run.records.extra.get(0, {}).get("estimated"))


def _joined(runs: list[Run]) -> Run:
    """Return runs of one request each as one run; every request's times count from its own start."""
    joined = Run("measured", Requests(), Records(len(runs)), array("d"), runs[0].config)
    records = joined.records
    records.end_s = array("d", [0.0]) * len(runs)
    records.visible = array("q", [-1]) * len(runs)
    for number, run in enumerate(runs):
        one, shift = run.records, len(joined.times)
        joined.times.extend(run.times)
        for name in ("prompt_tokens", "output_tokens", "arrival_s"):
            getattr(joined.requests, name).append(getattr(run.requests, name)[0])
        for name in ("planned_s", "sent_s", "prompt_tokens", "output_tokens", "cached_tokens", "outcome"):
            getattr(records, name)[number] = getattr(one, name)[0]
        for name in ("reason", "extra"):
            if 0 in getattr(one, name):
                getattr(records, name)[number] = getattr(one, name)[0]
        if 0 in one.capped:
            records.capped.add(number)
        if one.first[0] >= 0:
            records.first[number], records.last[number] = one.first[0] + shift, one.last[0] + shift
        if one.visible is not None and one.visible[0] >= 0:
            records.visible[number] = one.visible[0] + shift
        if one.end_s is not None:
            records.end_s[number] = one.end_s[0]
    return joined
