"""What can be completed on the command line, read from the parsers: verbs, options, and the words that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from servesim.catalog.hardware import HARDWARE
from servesim.catalog.models import MODELS
from servesim.cli.parser import Option, Parser
from servesim.cli.trace import ACTIONS
from servesim.cost.model import COST_MODELS
from servesim.engine.spec import OneOf
from servesim.report.figures import FIGURES
from servesim.report.schemas.registry import SCHEMAS

FILES = frozenset({"FILE", "FILE...", "FOLDER", "RUN", "A", "B"})
"""Metavars that stand for a path."""

_NAMES: dict[str, Mapping[str, Any]] = {
    "model": MODELS,
    "hardware": HARDWARE,
    "cost_model": COST_MODELS,
    "figures": FIGURES,
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
    options.append(
        Completable(
            flags=("--help", "-h"),
            about="show the help",
            takes_value=False,
            repeats=False,
            metavar="",
            words=(),
            path=False,
        )
    )
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
    takes_value = option.check is not None
    return Completable(
        flags=(option.flag, *option.aliases),
        about=option.help,
        takes_value=takes_value,
        repeats=option.repeat or bool(option.join),
        metavar=option.metavar,
        words=tuple(known) if takes_value else (),
        path=takes_value and (option.metavar in FILES or option.key in ("model", "hardware")),
    )
