"""The way in: finds the verb, runs it, and turns whatever went wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from servesim import __version__
from servesim.console import Console, reason
from servesim.errors import InputError, ServesimError
from servesim.units import suggest

VERBS: dict[str, str] = {
    "capacity": "what fits: the memory plan, the critical batch, whether it starts",
    "simulate": "one run of a workload on a simulated server",
    "sweep": "a grid of runs, one row each, and where the knee is",
    "loadgen": "measure a real server with the same workloads and metrics",
    "plan": "the cheapest servers that meet objectives, and their flags",
    "calibrate": "the figures of a device from measurements of real runs",
    "validate": "rerun the evidence for the cost models",
    "diagnose": "which budget binds a server, and which knob to turn first",
    "report": "pictures and exports of saved runs and sweeps: HTML, SVG, CSV, Perfetto, ...",
    "serve": "a simulated server behind a real HTTP API, without a GPU",
    "watch": "a real server by its /metrics, live: text, or the page that serve has",
    "trace": "what is in a trace of any known format; convert, cut, change its pace",
    "models": "the models that are known, or one of them",
    "hardware": "the devices that are known, or one of them",
    "compare": "two runs side by side: differences, their noise, verdicts, gates",
    "completion": "completion of the command line for bash, zsh and fish",
    "schema": "the JSON Schema of everything that is written",
    "help": "the guides, from first lessons to the evidence: servesim help TOPIC",
}
"""Each verb is the module `servesim.cli.VERB` with `build_parser()` and `run(call)` (see `servesim.cli.runner`)."""

USAGE = """\
examples:
  servesim capacity --hardware l4-24gb
  servesim simulate --hardware l4-24gb --trace burst --prefix-caching
  servesim sweep --concurrency 1,8,32,128,256

usage: servesim VERB [options]      servesim VERB --help      servesim --version

verbs:
{verbs}

exit codes: 0 success; 1 the answer is no, something failed, an interrupt; 2 bad input
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code."""
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ServesimError as error:
        Console().error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        Console().error("interrupted")
        return 1
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:
        if error.filename is not None:
            raise  # a file that its reader should have dealt with: a bug
        _forget_stdout()
        Console().error(f"cannot write the result: {reason(error)}")
        return 1
    except MemoryError:
        Console().error("out of memory; ask for fewer requests at once")
        return 1


def dispatch(argv: list[str]) -> int:
    """Run the verb that `argv` begins with."""
    if not argv or argv[0] in ("-h", "--help"):
        verbs = "\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items())
        print(USAGE.format(verbs=verbs), end="")
        return 0 if argv else InputError.exit_code
    if argv[0] in ("-V", "--version"):
        print(f"servesim {__version__}")
        return 0
    verb = argv[0]
    if verb not in VERBS:
        raise suggest("verb", verb, VERBS)
    from servesim.cli.runner import run_verb  # which imports what `servesim --help` does not need

    return run_verb(verb, argv[1:])


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit does not complain as well."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
