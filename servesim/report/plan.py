"""A plan for a person: every candidate in a row, the front, the choice with the commands that start it, the next steps.

Takes the body of the JSON document, so that text and JSON cannot say different things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.units import format_ms, percent

Json = Mapping[str, Any]

_NAMES = {
    "model": "model",
    "hardware": "hardware",
    "quantization": "quant",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "kv_cache_dtype": "kv",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "tokens",
    "block_size": "block",
    "prefix_caching": "caching",
    "disagg": "p:d",
}
WIDTH = 13


def plan_text(body: Json, *, partial: bool = False) -> str:
    """Return the text of a plan, `partial` where it was interrupted; it ends with a newline."""
    lines = [_line("objective", "   ".join(f"{slo['name']} <= {format_ms(slo['limit_ms'])}" for slo in body["slo"]))]
    if body["rate"] is not None:
        lines.append(_line("to serve", f"{body['rate']:g} requests/s"))
    seeds = f"seeds {_list(body['search_seeds'])}"
    if body["fresh_seeds"]:
        seeds += f", the choice checked on {_list(body['fresh_seeds'])}"
    lines += [_line("searched", f"{len(body['candidates'])} candidates in {body['runs']:,} runs   {seeds}"), ""]
    lines += _candidate_lines(body)
    if body["chosen"] is None:
        end = "interrupted: nothing is chosen" if partial else "nothing meets the objectives"
        return "\n".join([*lines, "", end]) + "\n"
    lines += ["", f"front: cost ({body['cost_unit']}) against latency"]
    lines += _front_lines(body)
    lines += ["", *_chosen_lines(body)]
    lines += [_next_line(step) for step in body["next"]]
    return "\n".join(lines) + "\n"


def _candidate_lines(body: Json) -> list[str]:
    """Return a row for each candidate, those that did exactly alike in one, and below why others have no figures."""
    rows = body["candidates"]
    columns = _varying(rows)
    groups: dict[str, list[Json]] = {}
    for row in rows:
        groups.setdefault(row["same_as"] or (row["key"] if row["rate"] else row["cut"]), []).append(row)
    header = [*(_NAMES[c] for c in columns), "devices", "requests/s", "95% interval", "cost", "binds"]
    table, reasons = [header], []
    for group in sorted(groups.values(), key=lambda group: (group[0]["cost"] is None, group[0]["cost"] or 0.0)):
        row, interval = group[0], group[0]["interval"]
        named = ["/".join(dict.fromkeys(_cell(each.get(column)) for each in group)) for column in columns]
        if row["rate"] is None:
            reasons.append(_line("not", f"{' '.join(named)}: {row['cut']}"))
            continue
        binds = (row["binds"] or {}).get("budget", "-")
        if row["steps_back"]:
            binds += f"; fresh seeds missed, {row['steps_back']} steps of more room"
        table.append(
            [
                *named,
                str(row["devices"]),
                f"{row['rate']:.2f}",
                "-" if interval is None else f"{interval['low']:.2f}-{interval['high']:.2f}",
                f"{row['cost']:,.2f}",
                "more --requests needed: nothing was late" if row["too_short"] else binds,
            ]
        )
    return [*(_table(table, len(columns)) if len(table) > 1 else ()), *reasons]


def _front_lines(body: Json) -> list[str]:
    columns = _varying([*body["candidates"], *body["front"]])
    slos = [slo["name"] for slo in body["slo"]]
    table = [[*(_NAMES.get(c, c) for c in columns), "replicas", "requests/s", "cost", *slos, "of limit"]]
    for offer in body["front"]:
        table.append(
            [
                *(_cell(offer.get(column)) for column in columns),
                str(offer["replicas"]),
                f"{offer['rate']:.2f}",
                f"{offer['cost']:,.2f}",
                *(format_ms(result["value_ms"]) for result in offer["at"]["slo"]),
                percent(offer["at"]["share_of_limit"]),
            ]
        )
    return _table(table, len(columns), left=0)


def _chosen_lines(body: Json) -> list[str]:
    chosen, limits = body["chosen"], body["chosen"]["limits"]
    named = "   ".join(
        f"{_NAMES.get(c, c)} {_cell(chosen[c])}" for c in ("model", *_varying(body["candidates"])) if chosen.get(c)
    )
    count = f"{chosen['replicas']} x " if chosen["replicas"] > 1 else ""
    lines = [
        _line("chosen", f"{count}{named}"),
        _line(
            "",
            f"{chosen['devices']} devices   {chosen['rate']:.2f} requests/s each   "
            f"cost {chosen['cost']:,.2f} ({body['cost_unit']})",
        ),
        _line("limits", "   ".join(f"{name} {_cell(value)}" for name, value in limits.items())),
    ]
    if chosen["interval"] is not None:
        interval = f"95% interval {chosen['interval']['low']:.2f}-{chosen['interval']['high']:.2f}"
        lines.append(
            _line(
                "sustains",
                f"{min(chosen['rates']):.2f} requests/s, the least of {len(chosen['rates'])} seeds   {interval}",
            )
        )
    if chosen["binds"] is not None:
        lines.append(_line("binds", f"{chosen['binds']['budget']}: {chosen['binds']['told']}"))
    if chosen["fresh"]:
        met = sum(row["met"] for row in chosen["fresh"])
        told = f"{met} of {len(chosen['fresh'])} meet the objectives"
        if chosen["steps_back"]:
            told += f", after {chosen['steps_back']} steps of more room because most did not"
        lines.append(_line("fresh seeds", told))
    if chosen["fleet"] is not None:
        values = "   ".join(f"{slo['name']} {format_ms(slo['value_ms'])}" for slo in chosen["fleet"]["at"]["slo"])
        lines.append(_line("as a fleet", f"router {chosen['fleet']['router']}   {values}"))
    for name, commands in chosen["flags"].items():
        if commands is None:
            lines.append(_line(name, "has no such server"))
        lines += [_line(name, command) for command in commands or ()]
    return lines


def _next_line(step: Json) -> str:
    if "knobs" in step:
        told = f"{step['change']}: {step['knobs']['vllm']}"
    elif "then" in step:
        told = f"up to {step['up_to']:.4g} requests/s as it is; then {step['then']}"
    else:
        names = [c for c in _NAMES if step.get(c) not in (None, False) and c != "model"]
        count = f"{step['replicas']} x " if step.get("replicas", 1) > 1 else ""
        told = count + " ".join(f"{_NAMES[c]} {_cell(step[c])}" for c in names)
        told += f" at {step['rate']:.2f} requests/s each, cost {step['cost']:,.2f}"
    return _line("next", f"{step['for']}: {told}")


def _varying(rows: Sequence[Json]) -> list[str]:
    """Return the choices that differ between rows, and the device in any case."""
    known = [column for row in rows for column in row if column in _NAMES]
    return [
        column
        for column in dict.fromkeys(known)
        if column == "hardware" or len({_cell(row.get(column)) for row in rows}) > 1
    ]


def _table(rows: list[list[str]], texts: int, left: int = 1) -> list[str]:
    """Return aligned rows; the first `texts` columns and the last `left` are text, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - left
    return [
        "  ".join(
            cell.ljust(width) if index < texts or index >= last else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _list(values: Sequence[int]) -> str:
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values))


def _line(label: str, text: str) -> str:
    return f"{label:<{WIDTH}}{text}"
