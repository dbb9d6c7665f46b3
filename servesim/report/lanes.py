"""The swim-lane: where each request's time went, one lane a request, all on the run's time axis."""

from __future__ import annotations

from collections.abc import Iterator

from servesim.records import Outcome, Run
from servesim.report.axes import Axis, Tick, axis_of_time
from servesim.report.explain import spans
from servesim.report.figure import Figure, Key, Panel
from servesim.report.material import Material, NamedRun
from servesim.report.series import over_s
from servesim.report.svg import HEIGHT, WIDTH, bars_path
from servesim.report.thin import evenly
from servesim.report.timeline import STYLES, common_end_s

LANES = 64  # of one run; of several, together
REMARKABLE = 8  # lanes that are kept for each way of standing out
LANE_PX = 10
LABEL_PX = 12
ID_LENGTH = 7
SHORT = 6  # a run this many times as long as its longest request: lanes begin at their own send
PHASES = {
    "queue": "queued",
    "queue and prefill": "queued and prefill (not told apart from outside)",
    "prefill": "prefill",
    "link wait": "waiting for the link",
    "transfer": "transfer of the KV",
    "decode queue": "queued",
    "decode": "decode",
    "preempted": "preempted",
    "recompute": "recompute after a preemption",
}
LOOKS = {"queue and prefill": "queue", "decode queue": "queue", "link wait": "link"}


def request_lanes(material: Material) -> Figure | None:
    """Return a panel a run; None without a request that was sent."""
    runs = material.runs[:STYLES]
    lanes = [(named, chosen) for named in runs if (chosen := chosen_lanes(named.run, LANES // len(runs)))]
    longest_s = max((_length_s(named.run, index) for named, chosen in lanes for index in chosen), default=0.0)
    end_s = common_end_s(runs)
    own_clock = longest_s * SHORT < end_s
    if not longest_s:
        return None
    x = axis_of_time(0.0, longest_s, "time since its send") if own_clock else axis_of_time(0.0, end_s)
    panels, seen, told = [], set[str](), []
    for named, chosen in lanes:
        panel, phases = _panel(x, named, chosen, several=len(runs) > 1, own_clock=own_clock)
        panels.append(panel)
        seen |= phases
        told.append(len(chosen))
    panels[-1].titled = True
    keys = list(dict.fromkeys(Key(_classes(phase), "bar", name) for phase, name in PHASES.items() if phase in seen))
    if "lost" in seen:
        keys.append(Key("square failed", "square", "failed or rejected"))
    return Figure(name="requests", title="Requests", caption=_caption(runs, told, own_clock), panels=panels, keys=keys)


def chosen_lanes(run: Run, most: int) -> list[int]:
    """Return at most `most` requests in the order in which they were sent.

    All of them, or an even sample with the slowest, the most often preempted and the lost ones beside it.
    """
    records = run.records
    sent = [index for index, at in enumerate(records.sent_s) if at == at]
    sent.sort(key=records.sent_s.__getitem__)
    if len(sent) <= most:
        return sent
    each = min(REMARKABLE, most // 6)
    slowest = sorted(sent, key=lambda index: records.sent_s[index] - over_s(run, index))[:each]
    often = sorted(records.preempted, key=lambda index: (-len(records.preempted[index]), index))[:each]
    lost = [index for index in sent if records.outcome[index] in (Outcome.FAILED, Outcome.REJECTED)]
    kept = {*slowest, *often, *evenly(lost, each)}
    others = [index for index in sent if index not in kept]
    kept |= set(evenly(others, most - len(kept)))
    return [index for index in sent if index in kept]


def spans_of(run: Run, index: int) -> Iterator[tuple[str, float, float]]:
    """Yield (phase, start, end) in seconds of a request, without visiting its tokens: their slices' ends suffice."""
    first, last = run.records.first[index], run.records.last[index]
    slices = run.records.pieces.get(index) or ([(first, last)] if first >= 0 else [])
    edges = [run.times[at] for piece in slices for at in dict.fromkeys(piece)]
    told = list(spans(run, index, edges))
    sent_s, end_s = run.records.sent_s[index], over_s(run, index)
    if not told and end_s > sent_s:  # a client that left before anything was known of it
        told.append(("queue", sent_s, end_s))
    yield from told


def _length_s(run: Run, index: int) -> float:
    return over_s(run, index) - run.records.sent_s[index]


def _panel(x: Axis, named: NamedRun, chosen: list[int], *, several: bool, own_clock: bool) -> tuple[Panel, set[str]]:
    run, count = named.run, len(chosen)
    height_px = max(40, LANE_PX * count)
    every = -(-LABEL_PX * count // height_px)  # a label needs more room than a lane
    labels = tuple(
        Tick(share=1 - (place + 0.5) / count, label=_short(run.requests.id(index)))
        for place, index in enumerate(chosen)
        if place % every == 0
    )
    title = f"request: {named.name}" if several else "request"
    y = Axis(title=title, low=0.0, high=1.0, ticks=labels)
    panel = Panel(x, y, height_px, titled=False, rows=True)
    bars: dict[str, list[tuple[int, int, int]]] = {}
    lost = []
    for place, index in enumerate(chosen):
        height = round((place + 0.5) / count * HEIGHT)
        zero_s = run.records.sent_s[index] if own_clock else 0.0
        for phase, start, end in spans_of(run, index):
            left, right = (round(x.share(at - zero_s) * WIDTH) for at in (start, end))
            bars.setdefault(phase, []).append((min(left, WIDTH - 2), max(right, min(left, WIDTH - 2) + 2), height))
        if run.records.outcome[index] in (Outcome.FAILED, Outcome.REJECTED):
            lost.append((round(x.share(over_s(run, index) - zero_s) * WIDTH), height))
    for phase in PHASES:
        panel.mark(bars_path(bars.get(phase, ())), _classes(phase))
    panel.mark("".join(f"M{at} {height}h0" for at, height in lost), "square failed")
    return panel, {*bars, *(["lost"] if lost else [])}


def _classes(phase: str) -> str:
    return f"bar {LOOKS.get(phase, phase)}"


def _short(name: str) -> str:
    return name if len(name) <= ID_LENGTH else f"{name[: ID_LENGTH - 1]}…"


def _caption(runs: list[NamedRun], told: list[int], own_clock: bool) -> str:
    clock = " Each lane begins when its request was sent." if own_clock else ""
    whole = sum(sum(at == at for at in named.run.records.sent_s) for named in runs)
    if sum(told) == whole:
        if whole == 1:
            return f"The only request.{clock}"
        return f"All {whole:,} requests, in the order in which they were sent.{clock}"
    return (
        f"{sum(told):,} of {whole:,} requests, in the order in which they were sent: an even sample, with the slowest, "
        f"the most often preempted and some of the lost ones added.{clock}"
    )
