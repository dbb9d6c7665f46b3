"""`servesim completion SHELL`: the script that lets bash, zsh or fish complete verbs, options, presets and files.

What can be completed is read from the parsers of the verbs: this module knows no option by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.cli.main import VERBS
from servesim.cli.options import OUTPUT, QUIET
from servesim.cli.parser import Parser
from servesim.cli.runner import Call, Result
from servesim.cli.trace import ACTIONS
from servesim.config.option import Group, OneOf, Option
from servesim.cost.model import COST_MODELS
from servesim.errors import InputError
from servesim.report.charts import FIGURES
from servesim.report.schemas.registry import SCHEMAS
from servesim.units import suggest
from servesim.workload.traces.trace import EXAMPLES as EXAMPLE_TRACES

FILES = frozenset({"FILE", "FILE...", "FOLDER", "RUN", "A", "B"})
"""Metavars that stand for a path."""

_NAMES: dict[str, Mapping[str, Any]] = {
    "model": MODELS,
    "hardware": HARDWARE,
    "cost_model": COST_MODELS,
    "figures": FIGURES,
    "trace": EXAMPLE_TRACES,
}
"""What options take that have a check of their own, by key; a file is taken by the first two as well."""

_POSITIONAL: dict[str, Mapping[str, Any]] = {
    "models": MODELS,
    "hardware": HARDWARE,
    "trace": ACTIONS,
    "schema": SCHEMAS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completable:
    """One option: `words` are what it takes, where that is known; `path` where it takes a file."""

    flags: tuple[str, ...]
    about: str
    takes_value: bool
    repeats: bool
    metavar: str
    words: tuple[str, ...]
    path: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb: what may stand behind it."""

    name: str
    about: str
    options: tuple[Completable, ...]
    words: tuple[str, ...]
    path: bool


def verbs(known: Mapping[str, str], words: Mapping[str, tuple[str, ...]]) -> list[Verb]:
    """Return the verbs of `known`, name to summary; `words` are the arguments of those that the registries lack."""
    return [_verb(name, about, words.get(name, ())) for name, about in known.items()]


def _verb(name: str, about: str, words: tuple[str, ...]) -> Verb:
    parser: Parser = import_module(f"servesim.cli.{name}").build_parser()
    options = [_option(option) for group in parser.groups for option in group.options]
    options += [
        _option(Option(flag, "help", about, aliases=aliases))
        for flag, about, aliases in (
            ("--help", "show the options that people use", ("-h",)),
            ("--help-all", "show all options", ()),
        )
    ]
    positional = [str(action.metavar or action.dest) for action in parser._actions if not action.option_strings]
    return Verb(
        name=name,
        about=about,
        options=tuple(options),
        words=words or tuple(_POSITIONAL.get(name, ())),
        path=bool(FILES.intersection(positional)) or name == "hardware",
    )


def _option(option: Option) -> Completable:
    known = option.check.choices if isinstance(option.check, OneOf) else _NAMES.get(option.key, ())
    takes_value = option.takes_value
    return Completable(
        flags=(option.flag, *option.aliases),
        about=option.about,
        takes_value=takes_value,
        repeats=option.repeat or bool(option.join),
        metavar=option.metavar,
        words=tuple(known) if takes_value else (),
        path=takes_value and (option.metavar in FILES or option.key in ("model", "hardware")),
    )


def bash(verbs: Sequence[Verb]) -> str:
    """Return a script for bash 4 and later (on macOS that of Homebrew)."""
    cases = "".join(f"        {verb.name})\n{_bash_verb(verb)}            ;;\n" for verb in verbs)
    return f"""\
# servesim's completion for bash: source it, or save it in ~/.local/share/bash-completion/completions/servesim
_servesim() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} flags='' words='' path=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W '{_joined(verb.name for verb in verbs)} --help --version' -- "$current")
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}    esac
    [[ $current == -* ]] && words=$flags path=''
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"; [[ $path ]] && compgen -f -- "$current")
}}
complete -o filenames -F _servesim servesim
"""


def _bash_verb(verb: Verb) -> str:
    flags = _joined(flag for option in verb.options for flag in option.flags)
    lines = [f"flags='{flags}'", "case $before in"]
    for option in verb.options:
        if option.takes_value:
            lines.append(f"    {'|'.join(option.flags)}) {_bash_values(option.words, option.path)} flags='' ;;")
    lines += [f"    *) {_bash_values(verb.words, verb.path)} ;;", "esac"]
    return "".join(f"            {line}\n" for line in lines)


def _bash_values(words: Sequence[str], path: bool) -> str:
    return f"words='{_joined(words)}' path={'yes' if path else ''}"


def zsh(verbs: Sequence[Verb]) -> str:
    """Return a script for zsh, to be sourced behind compinit or to lie as `_servesim` on the fpath."""
    described = "".join(f"        {_quoted(f'{verb.name}:{verb.about}')}\n" for verb in verbs)
    cases = "".join(
        f"        {verb.name})\n            _arguments \\\n"
        + "".join(f"                {spec} \\\n" for option in verb.options for spec in _zsh_specs(option))
        + f"                {_quoted(f'*:argument:{_zsh_values(verb.words, verb.path)}')}\n            ;;\n"
        for verb in verbs
    )
    return f"""\
#compdef servesim
# servesim's completion for zsh: source it behind compinit, or save it as _servesim in a folder of your fpath
_servesim() {{
    local -a verbs=(
{described}    )
    if ((CURRENT == 2)); then
        _describe verb verbs
        return
    fi
    shift words
    ((CURRENT--))
    case $words[1] in
{cases}    esac
}}
if [[ $funcstack[1] == _servesim ]]; then
    _servesim "$@"
else
    compdef _servesim servesim
fi
"""


def _zsh_specs(option: Completable) -> list[str]:
    about = option.about
    for character in "\\[]:":
        about = about.replace(character, f"\\{character}")
    value = f":{option.metavar}:{_zsh_values(option.words, option.path)}" if option.takes_value else ""
    star = "*" if option.repeats else ""
    return [_quoted(f"{star}{flag}[{about}]{value}") for flag in option.flags]


def _zsh_values(words: Sequence[str], path: bool) -> str:
    if words and path:
        return f"{{ compadd -- {_joined(words)}; _files }}"
    return f"({_joined(words)})" if words else "_files" if path else " "


def fish(verbs: Sequence[Verb]) -> str:
    """Return a script for fish 3 and later."""
    lines = [
        "# servesim's completion for fish: save it as ~/.config/fish/completions/servesim.fish",
        "complete -c servesim -f",
    ]
    for verb in verbs:
        lines.append(f"complete -c servesim -n __fish_use_subcommand -a {verb.name} -d {_fish_quoted(verb.about)}")
    for verb in verbs:
        at = f"complete -c servesim -n '__fish_seen_subcommand_from {verb.name}'"
        if verb.words:
            lines.append(f"{at} -a {_fish_quoted(_joined(verb.words))}")
        if verb.path:
            lines.append(f"{at} -F")
        for option in verb.options:
            names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            lines.append(f"{at} {names} -d {_fish_quoted(option.about)}{_fish_values(option)}")
    return "\n".join(lines) + "\n"


def _fish_values(option: Completable) -> str:
    if not option.takes_value:
        return ""
    words = f" -a {_fish_quoted(_joined(option.words))}" if option.words else ""
    return (" -r -F" if option.path else " -x") + words


def _joined(words: Iterable[str]) -> str:
    return " ".join(words)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Sequence[Verb]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


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
        usage="SHELL [options]",
    )
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SHELLS))
    return parser


def run(call: Call) -> Result:
    shell = call.values.get("shell")
    if shell is None:
        raise InputError(f"name a shell: servesim completion {'|'.join(SHELLS)}")
    if shell not in SHELLS:
        raise suggest("shell", shell, SHELLS)
    return Result(text=lambda: SHELLS[shell](verbs(VERBS, {"completion": tuple(SHELLS)})))
