"""The documents' `console` blocks: run them, compare, or write what they print.

`python3 -m tests.readme_commands` writes the README. In a block a line `$ COMMAND` is a command and the lines below it
are its stdout; a line `...` stands for any number of lines. A block is written anew unless it has such a line. The
commands of one document run in order in one folder: what one saves is there for the next.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.command import ROOT, in_shell, workspace

README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.DOTALL)


def sessions(text: str) -> list[tuple[str, str]]:
    """Return (command, expected stdout) of every command in the `console` blocks of `text`."""
    found = []
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            found.append((command, expected))
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


if __name__ == "__main__":
    rewrite(README)
    sys.exit(0)
