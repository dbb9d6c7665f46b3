"""The pages that people read, README and guides, and their `console` blocks: run, compare, or write what they print.

`python3 -m tests.page_commands` writes the blocks of every page. In a block a line `$ COMMAND` is a command, continued
on the next line where it ends in a backslash, and the lines below it are its stdout; a line `...` stands for any number
of lines. A block is written anew unless it has such a line. The commands of one page run in order in one folder: what
one saves is there for the next.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from servesim.guide import TOPICS
from tests.command import ROOT, in_shell, workspace

README = ROOT / "README.md"
PAGES = (README, *(ROOT / "servesim" / "guide" / f"{topic}.md" for topic in TOPICS))
"""Every page, in the order in which a reader meets them."""

COMMAND = re.compile(r"(?:.*\\\n)*.*\n?")
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)


def sessions(text: str) -> list[tuple[str, str]]:
    """Return (command, expected stdout) of every command in the `console` blocks of `text`."""
    found = []
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command = COMMAND.match(part)
            assert command is not None
            found.append((command[0].rstrip("\n"), part[command.end() :]))
    return found


def matches(expected: str, got: str) -> bool:
    """Return whether `got` is what was expected, where a line `...` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in expected.splitlines(keepends=True)
    )
    return re.fullmatch(pattern, got) is not None


def rewritten(text: str) -> str:
    """Return `text` with what its commands print now."""
    with workspace() as folder:

        def renew(match: re.Match[str]) -> str:
            parts = []
            for command, expected in sessions(f"```console\n{match[0]}```"):
                got = in_shell(command, folder).out
                shown = expected if "...\n" in expected else got
                parts.append(f"$ {command}\n{shown}")
            return "".join(parts)

        return BLOCK.sub(renew, text)


def rewrite(path: Path) -> None:
    path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")


def replaced(text: str, begin: str, end: str, body: str) -> str | None:
    """Return `text` with `body` between the markers `begin` and `end`; None where it has no such place."""
    before, found, rest = text.partition(begin)
    return before + begin + body + rest[rest.index(end) :] if found else None


def put(begin: str, end: str, body: str) -> None:
    """Put `body` between the markers, on the one page that has them; raise SystemExit where none or several do."""
    places = [path for path in PAGES if begin in path.read_text(encoding="utf-8")]
    if len(places) != 1:
        raise SystemExit(f"{len(places)} pages have the marker {begin.strip()}, must be one")
    text = replaced(places[0].read_text(encoding="utf-8"), begin, end, body)
    assert text is not None
    places[0].write_text(text, encoding="utf-8")


def put_table(name: str, body: str) -> None:
    """Put a table where a page has its marker."""
    put(f"<!-- table: {name} -->\n", "<!-- end -->", f"{body}\n")


if __name__ == "__main__":
    for page in PAGES:
        rewrite(page)
    sys.exit(0)
