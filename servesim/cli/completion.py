"""`servesim completion SHELL`: the script that lets a shell complete verbs, options, presets and files."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.cli.completable import verbs
from servesim.cli.main import VERBS
from servesim.cli.options import OUTPUT, QUIET
from servesim.cli.output import result_to
from servesim.cli.parser import Group, Parser
from servesim.cli.shells import SHELLS
from servesim.errors import InputError
from servesim.units import suggest

EXAMPLES = (
    "servesim completion bash -o ~/.local/share/bash-completion/completions/servesim",
    "servesim completion zsh -o ~/.zfunc/_servesim",
    "servesim completion fish -o ~/.config/fish/completions/servesim.fish",
)


def build_parser() -> Parser:
    parser = Parser(
        "completion",
        f"A script that completes servesim's command line, made from it: {', '.join(SHELLS)}.\n"
        'For this bash alone: eval "$(servesim completion bash)".',
        EXAMPLES,
        (Group("output", (OUTPUT, QUIET)),),
    )
    parser.usage = "servesim completion SHELL [options]"
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SHELLS))
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().read(argv)
    if flags is None:
        return 0
    shell = flags.get("shell")
    if shell is None:
        raise InputError(f"name a shell: servesim completion {'|'.join(SHELLS)}")
    if shell not in SHELLS:
        raise suggest("shell", shell, SHELLS)
    with result_to(flags.get("output")) as write:
        write(SHELLS[shell](verbs(VERBS, {"completion": tuple(SHELLS)})))
    return 0
