"""The JSON documents that others build on: the same frame around every result, and numbers that JSON has.

Every document names its schema, the version and command that made it, the effective configuration, from which it can be
run again, and whether it is partial. Unknown is null; nothing is ever NaN or infinite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from servesim import __version__
from servesim.runs.as_json import finite
from servesim.summary.summary import Summary

SUMMARY_COMMANDS = frozenset({"simulate", "loadgen"})
"""Commands whose document is one summary, if nothing else was asked; any other has a schema of its own name."""


def document(
    command: str, config: Mapping[str, Any], body: Mapping[str, Any], *, partial: bool = False, schema: str = ""
) -> dict[str, Any]:
    """Return `body` in the frame of a document of `command`; `schema` names its kind where that is not the usual."""
    kind = schema or ("summary" if command in SUMMARY_COMMANDS else command)
    return {
        "schema": f"servesim.{kind}/1",
        "servesim": __version__,
        "command": command,
        "config": dict(config),
        "partial": partial,
        **body,
    }


def summary_document(command: str, config: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    """Return the document of one run."""
    return document(command, config, summary.as_dict(), partial=summary.partial)


def sweep_document(
    config: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    *,
    knee: int | None = None,
    command: str = "sweep",
) -> dict[str, Any]:
    """Return the document of a grid: `rows`, each the swept values of its point and its summary; `knee`, a row."""
    rows = [{**point, **summary.as_dict()} for point, summary in zip(points, summaries, strict=True)]
    partial = any(summary.partial for summary in summaries)
    return document(command, config, {"rows": rows, "knee": knee}, partial=partial, schema="sweep")


def to_json(document: Mapping[str, Any]) -> str:
    """Return `document` as JSON text with a line end."""
    try:
        return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    except ValueError:  # a NaN or infinity in facts that a server reported
        return json.dumps(finite(dict(document)), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
