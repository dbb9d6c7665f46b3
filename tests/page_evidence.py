"""Rerun the evidence and put its tables into the guide: `SERVESIM_DATA=FOLDER python3 -m tests.page_evidence`.

It takes minutes; `--from FILE` takes what `servesim validate --json` said instead. An evidence whose data are not at
hand leaves its tables as they are, and says so. Exit 1: a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.command import ROOT
from tests.page_commands import put_table

Rows = Sequence[Sequence[Any]]


def rerun() -> list[dict[str, Any]]:
    """Return the evidence as `servesim validate` finds it now."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evidence.json"
        subprocess.run([sys.executable, "-m", "servesim", "validate", "--json", "-o", path], cwd=ROOT, check=False)
        return evidence_in(path)


def evidence_in(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["evidence"]
    return found


def tables(evidence: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the guide's tables, by their markers, of the evidence that was not skipped."""
    found = {each["name"]: each for each in evidence if not each["skipped"]}
    claims = [(name, claim) for name, each in found.items() for claim in each["claims"]]
    rows = [
        (f"`{name}`", claim["what"], percent(claim["value"]), f"{claim['bound']:.0%}", "yes" if claim["met"] else "NO")
        for name, claim in claims
        if claim["bound"] is not None
    ]
    made = {"evidence": _table(("evidence", "claim", "found", "bound", "met"), rows)} if len(found) == 4 else {}
    if "vllm-runs" in found:
        table = found["vllm-runs"]["tables"][0]
        made["vllm-runs"] = _table(table["columns"], [[shown(cell) for cell in row] for row in table["rows"]])
    if "silicon" in found:
        fitted, worst, carried = (table["rows"] for table in found["silicon"]["tables"])
        made["silicon"] = _table(
            ("", "groups", "points", "TTFT", "TPOT", "carried: groups", "TTFT", "TPOT"),
            [[*map(shown, row), *_beside(row[0], carried)] for row in fitted],
        )
        made["silicon-worst"] = _table(
            ("server", "tokens in/out", "TTFT", "TPOT", "reason"), [list(map(shown, row[1:])) for row in worst]
        )
    return made


def _beside(name: str, rows: Rows) -> list[str]:
    row = next((row for row in rows if row[0] == name), None)
    return ["-", "-", "-"] if row is None else [shown(row[1]), shown(row[3]), shown(row[4])]


def percent(share: float) -> str:
    return f"{share:.1%}"


def shown(cell: str | int | float) -> str:
    if isinstance(cell, float):
        return f"{round(cell, 3) + 0.0:.1%}"
    return f"{cell:,}" if isinstance(cell, int) else cell.replace("|", "\\|")


def _table(columns: Sequence[str], rows: Rows) -> str:
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.page_evidence", allow_abbrev=False)
    parser.add_argument("--from", dest="file", type=Path, help="what servesim validate --json said")
    file = parser.parse_args().file
    evidence = rerun() if file is None else evidence_in(file)
    for name, body in tables(evidence).items():
        put_table(name, body)
    for each in evidence:
        if each["skipped"]:
            print(f"{each['name']} was skipped: {each['skipped']}", file=sys.stderr)
    missed = [claim["what"] for each in evidence for claim in each["claims"] if claim["met"] is False]
    for what in missed:
        print(f"does not hold: {what}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
