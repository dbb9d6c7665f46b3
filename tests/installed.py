"""What must work where the wheel was installed, run there as a script: command, data files, guides, traces, names."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from importlib import metadata, resources


def said(*argv: str) -> str:
    """Return what the installed command prints."""
    command = os.path.join(sysconfig.get_path("scripts"), "servesim")
    return subprocess.run([command, *argv], capture_output=True, text=True, check=True).stdout


def main() -> int:
    import servesim

    home = os.path.realpath(sysconfig.get_path("purelib"))
    assert os.path.realpath(servesim.__file__).startswith(home), servesim.__file__
    assert metadata.version("servesim") == servesim.__version__
    assert metadata.requires("servesim") in (None, [])
    assert resources.files("servesim").joinpath("py.typed").is_file()
    assert said("--version") == f"servesim {servesim.__version__}\n"
    assert json.loads(said("capacity", "--hardware", "l4-24gb", "--json"))["num_blocks"] == 1941
    run = "run.jsonl"
    quick = ("--requests", "4", "--prompt-tokens", "50", "--output-tokens", "5", "--quiet")
    assert json.loads(said("simulate", *quick, "--json", "--save", run))["requests"]["completed"] == 4
    assert said("report", run).startswith("<!doctype html>")
    assert json.loads(said("schema", "run"))["$id"] == "servesim.run/1"
    assert "complete" in said("completion", "bash")
    assert said("help", "lessons").startswith("# Lessons")
    assert "requests     48\n" in said("trace", "describe", "burst", "--quiet")
    for name in servesim._HOMES:
        assert getattr(servesim, name) is not None, name
    print(f"python {platform.python_version()}: installed: command, data files, guides, traces and names are there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
