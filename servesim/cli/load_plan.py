"""What `loadgen` is asked to measure, decided and checked before anybody is spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from servesim.analysis.sweep import Point, grid
from servesim.cli.client_options import load_spec
from servesim.cli.load_options import slos_of, workload_spec
from servesim.cli.parser import Parser
from servesim.client.prompts import GivenPrompt, read_prompts
from servesim.client.scan import DEFAULT_REPEATS, DEFAULT_WARMUP, scanned
from servesim.client.spec import LoadSpec
from servesim.console import reason
from servesim.errors import InputError
from servesim.slo import Slo
from servesim.workload.build import load_requests
from servesim.workload.requests import Requests
from servesim.workload.spec import LOADS, WorkloadSpec
from servesim.workload.trace_file import kept_trace

DEFAULT_CONCURRENCY = 8
CHARACTERS_A_TOKEN = 4  # a guess at a given text's length, until the server's usage tells


@dataclass(slots=True, kw_only=True)
class Plan:
    """What is to be measured: points of a grid (one, if nothing is swept) or a search, and how often each."""

    values: dict[str, Any]  # every option, by key
    load: LoadSpec
    axes: dict[str, list[Any]]
    points: list[Point]
    scan: str | None  # the axis of a length scan
    warmup: int
    repeat: int
    slos: list[Slo]
    given: list[GivenPrompt] | None = None
    replayed: dict[WorkloadSpec, Requests] = field(default_factory=dict)  # traces, each read once
    notes: list[str] = field(default_factory=list)  # what a person should know about them

    @property
    def first_label(self) -> str:
        """Return what sets the file of the first run apart, empty where there is one run."""
        if self.load.find is not None:
            return probe_label(self.load.find, float(self.values[self.load.find]), 0)
        return point_label(self.points[0])


def make_plan(parser: Parser, values: dict[str, Any]) -> Plan:
    """Return the plan for `values`. Raises InputError for all that can be wrong before the first request."""
    if "url" not in values:
        raise InputError("--url is missing, such as --url http://127.0.0.1:8080")
    values = dict(values)
    load = load_spec(values)
    load.target()
    given = _given(values)
    if given is not None:
        _describe_given(values, given)
    axes = {key: values[key] for key, option in parser.options.items() if option.swept and _is_list(values.get(key))}
    scan = scanned(axes)
    if not values.keys() & LOADS:
        values["concurrency"] = 1 if scan or load.find else DEFAULT_CONCURRENCY
    repeat = load.repeat
    if scan is not None:
        values.setdefault("requests", values.get("repeat", DEFAULT_REPEATS))
        repeat = 1
    slos = slos_of(values)
    if load.find is not None:
        if axes or not slos:
            raise InputError("find needs an --slo to meet, and one value for every option; leave out the lists")
        if load.find not in values:
            values.pop("concurrency", None)
            values[load.find] = 1
        if load.find_max is not None and load.find_max < values[load.find]:
            raise InputError(f"find_max is {load.find_max:g}, but the search starts at {values[load.find]:g}")
    points = grid(axes)
    replayed: dict[WorkloadSpec, Requests] = {}
    notes: list[str] = []
    with kept_trace(values.get("trace")) as trace:
        for spec in dict.fromkeys(workload_spec(values | point) for point in points):
            if spec.trace is not None:
                replayed[spec] = load_requests(replace(spec, trace=trace), None if replayed else notes)
    return Plan(
        values=values,
        load=load,
        axes=axes,
        points=points,
        scan=scan,
        warmup=values.get("warmup", DEFAULT_WARMUP if scan else load.warmup),
        repeat=repeat,
        slos=slos,
        given=given,
        replayed=replayed,
        notes=notes,
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1


def _given(values: dict[str, Any]) -> list[GivenPrompt] | None:
    """Return the prompts that were given as text, None where they are made."""
    if "prompt" in values:
        return [GivenPrompt(prompt=values["prompt"])]
    path = values.get("prompts")
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8-sig") as file:
            return read_prompts(file, path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None


def _describe_given(values: dict[str, Any], given: list[GivenPrompt]) -> None:
    """Put given prompts into the workload's terms: their number, and a guess at their length."""
    for key in ("prompt_tokens", "trace", "turns", "shared_prefix_tokens"):
        if key in values:
            raise InputError(f"{key} describes prompts that are made, but they are given; leave one out")
    sizes = [max(1, len(str(each.prompt)) // CHARACTERS_A_TOKEN) for each in given]
    values["prompt_tokens"] = f"{min(sizes)}-{max(sizes)}"
    if "prompts" in values and "duration_s" not in values:
        values.setdefault("requests", len(given))


def point_label(point: Point) -> str:
    """Return what sets the file of a grid's point apart.

    >>> point_label({"concurrency": 8, "output_tokens": "10"})
    'concurrency-8.output_tokens-10'
    """
    return ".".join(f"{key}-{value}".replace(":", "_").replace("/", "_") for key, value in point.items())


def probe_label(key: str, load: float, number: int) -> str:
    """Return what sets the file of a search's probe apart.

    >>> probe_label("rate", 2.5, 0)
    'rate-2.5.1'
    """
    return f"{key}-{load:g}.{number + 1}"
