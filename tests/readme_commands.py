"""The README's `console` blocks: run them, compare, or write what they print: `python3 -m tests.readme_commands`.

In a block a line `$ COMMAND` is a command and the lines below it are its stdout; a line `...` stands for any number of
lines. A block is written anew unless it has such a line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.command import in_shell

README = Path(__file__).resolve().parent.parent / "README.md"
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

    def renew(match: re.Match[str]) -> str:
        parts = []
        for command, expected in sessions(f"```console\n{match[0]}```"):
            out = expected if "...\n" in expected else in_shell(command).out
            parts.append(f"$ {command}\n{out}")
        return "".join(parts)

    return BLOCK.sub(renew, text)


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
