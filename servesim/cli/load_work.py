"""A `loadgen` measurement in progress: who measures, where the records go, who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from servesim.analysis.sweep import Point
from servesim.cli.load_options import workload_spec
from servesim.cli.load_plan import Plan
from servesim.client.livefile import LiveFile, path_beside
from servesim.client.measurement import Measurer
from servesim.client.run import Progress
from servesim.console import Console
from servesim.errors import RunError
from servesim.interrupts import Interrupts
from servesim.live.load import LoadPage
from servesim.records import Run
from servesim.summary import Summary, summarize


@dataclass(slots=True, kw_only=True)
class Work:
    """Measures the points of a plan. Enter it; Ctrl-C then ends a run instead of the program."""

    plan: Plan
    console: Console
    interrupts: Interrupts
    measurer: Measurer
    first_file: LiveFile | None
    page: LoadPage | None = None
    file_errors: list[RunError] = field(default_factory=list)

    @classmethod
    def begin(cls, plan: Plan, console: Console) -> Work:
        """Open the first file, then find the server. Raises RunError where one of them cannot be had."""
        for note in plan.notes:
            console.note(note)
        path = plan.values.get("save")
        first = None if path is None else LiveFile(path_beside(path, plan.first_label) if plan.first_label else path)
        page = None if plan.values.get("live") is None else LoadPage(plan.load.target(), plan.values["live"])
        if page is not None:
            console.note(f"the live page is at {page.url}")
        interrupts = Interrupts(patience=2)  # the second ends what is in flight, the third whatever hangs
        measurer = Measurer(plan.load, plan.given, interrupts=interrupts, waiting=_waiting(console))
        return cls(plan=plan, console=console, interrupts=interrupts, measurer=measurer, first_file=first, page=page)

    def __enter__(self) -> Work:
        self.interrupts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupts.__exit__(None, None, None)
        self.measurer.close()
        if self.page is not None:
            self.page.close()

    def measure(self, point: Point, label: str, *, warmup: int | None = None) -> tuple[Run, Summary]:
        """Measure one point once; `label` sets its file apart where there are several."""
        values = self.plan.values | point
        spec = workload_spec(values)
        config = self.measurer.config(spec) | ({"slo": values["slo"]} if values.get("slo") else {})
        config["warmup"] = self.plan.warmup
        file = self._file(label)
        total = None if spec.duration_s is not None else spec.requests
        with self.console.progress(label or "requests", total) as progress:

            def watch(state: Progress) -> None:
                rate = state.token_events / state.elapsed_s if state.elapsed_s > 0 else 0.0
                progress.update(state.done, f"{state.in_flight} in flight  {rate:,.0f} tok/s  {state.errors} errors")
                if self.page is not None:
                    self.page.progress(state)

            run = self.measurer.measure(
                spec,
                warmup=self.plan.warmup if warmup is None else warmup,
                config=config,
                file=file,
                progress=watch,
                filed=None if self.page is None else self.page.filed,
                requests=self.plan.replayed.get(spec),
            )
        if file is not None and file.error is not None:
            self.file_errors.append(file.error)
        return run, summarize(run, self.plan.slos)

    def repeated(self, point: Point, label: str) -> tuple[Run, Summary, list[Summary]]:
        """Measure one point as often as asked; return the repeat of median throughput, and all of them."""
        done: list[tuple[Run, Summary]] = []
        for number in range(self.plan.repeat):
            warmup = self.plan.warmup if number == 0 else 0
            done.append(
                self.measure(
                    point, ".".join(part for part in (label, str(number + 1) if number else "") if part), warmup=warmup
                )
            )
            if done[-1][0].partial:
                break
        if done[0][0].warmup is not None:
            for each, _ in done[1:]:
                each.warmup = done[0][0].warmup
        by_speed = sorted(done, key=lambda pair: pair[1].throughput.output_tokens_per_s or 0.0)
        run, summary = done[-1] if done[-1][0].partial else by_speed[(len(done) - 1) // 2]
        return run, summary, [each for _, each in done]

    def _file(self, label: str) -> LiveFile | None:
        if self.first_file is not None:
            file, self.first_file = self.first_file, None
            return file
        path = self.plan.values.get("save")
        return None if path is None else LiveFile(path_beside(path, label))


def _waiting(console: Console) -> Callable[[str], None]:
    told: set[str] = set()

    def waiting(why: str) -> None:
        if why not in told:
            told.add(why)
            console.note(f"waiting: {why}")

    return waiting
