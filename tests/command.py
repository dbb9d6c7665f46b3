"""Run the command line as a person would: in this process, or as one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servesim.cli.main import main

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


def servesim(*argv: str) -> Said:
    """Run `servesim ARGV` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return Said(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder that holds the project's own folders as a checkout does, and whatever commands write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("servesim", "tests", "fixtures", "outputs"):
            (folder / part).symlink_to(ROOT / part)
        yield folder


def in_shell(command: str, folder: Path = ROOT, **environment: str) -> Said:
    """Run `command` in a shell in `folder`; `servesim` and `python3` are this interpreter's."""
    prelude = f'servesim() {{ "{sys.executable}" -m servesim "$@"; }}; python3() {{ "{sys.executable}" "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", prelude + command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
