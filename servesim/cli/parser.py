"""A verb's `argparse` parser, made of declared options: examples first, defaults shown, errors of one line.

`--help` shows the options that are declared `common`, `--help-all` every one. This module knows no
option by name.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, NoReturn

from servesim.config.option import Group, Option
from servesim.errors import InputError
from servesim.units import parse_list, shown, suggest

WIDTH = 100  # of the text above the options
FEW = 20  # so many options are shown at once

KINDS = {
    "N": "a whole number: 256, 10k, 1.5M",
    "TIME": "with its unit: 250ms, 30s, 5m, 1h, 1d; only 0 needs none",
    "SIZE": "bytes with their unit: 64GB (10^9), 16GiB (2^30)",
    "RATE": "a bandwidth: 25GB/s of bytes, 400Gb/s of bits",
}
"""How values of a kind are written; they stand below the options of every help that names them."""


def _wrapped(summary: str) -> str:
    """Return `summary` wrapped: an empty line ends a paragraph, `  name   text` is an entry of a list."""
    parts = []
    for part in summary.split("\n\n"):
        entry = re.match(r"  \S+ +", part)
        lines = [part.replace("\n", " ")] if entry is None else part.split("\n")
        indent = "" if entry is None else " " * len(entry[0])
        parts.append("\n".join(textwrap.fill(line, WIDTH, subsequent_indent=indent) for line in lines))
    return "\n\n".join(parts)


class _Join(argparse.Action):
    """Joins the values of an option that is given several times; of lists of values, each with each."""

    def __init__(self, joint: str, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, **rest)
        self._joint = joint

    def __call__(self, parser: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None:
            sides = [side if isinstance(side, list) else [side] for side in (before, value)]
            joined = [self._joint.join(pair) for pair in product(*sides)]
            value = joined[0] if len(joined) == 1 else joined
        setattr(namespace, self.dest, value)


class Parser(argparse.ArgumentParser):
    """The parser of one verb: `read` returns only what was given, by key."""

    def __init__(
        self,
        verb: str,
        summary: str,
        examples: Iterable[str],
        groups: Iterable[Group],
        *,
        usage: str = "[options]",
        lists: bool = False,
    ) -> None:
        super().__init__(
            prog=f"servesim {verb}",
            usage=f"servesim {verb} {usage}",
            description=_wrapped(summary),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            add_help=False,
        )
        self.examples = tuple(examples)
        self.groups = tuple(groups)
        self.lists = lists
        for group in self.groups:
            section = self.add_argument_group(group.title)
            for option in group.options:
                self._add(section, option)
        self._more = self.add_argument_group("help")
        self._more.add_argument("-h", "--help", action="store_true", help="show the options that people use")
        self._more.add_argument("--help-all", action="store_true", help="show all options")

    def _add(self, section: argparse._ArgumentGroup, option: Option) -> None:
        text = option.about + (f" (default: {option.default})" if option.default else "")
        text = text.replace("%", "%%")
        flags = (option.flag, *option.aliases)
        check = option.check
        if not option.takes_value:
            section.add_argument(*flags, dest=option.key, action="store_const", const=option.value, help=text)
            return

        def parse(value: str) -> Any:
            if self.lists and option.swept:
                values = parse_list(value, check, option.flag)
                return values[0] if len(values) == 1 else values
            return check(value, option.flag)

        action: Any = "extend" if option.many else "append" if option.repeat else "store"
        if option.join:
            action = partial(_Join, option.join)
        section.add_argument(
            *flags,
            dest=option.key,
            action=action,
            type=parse,
            metavar=option.metavar,
            help=text,
            nargs="+" if option.many else None,
        )

    def format_help(self) -> str:
        """Return the whole help."""
        return self.help_text(whole=True)

    def help_text(self, *, whole: bool) -> str:
        """Return the examples, the summary and the options: all of them, or those that people use."""
        whole = whole or len(self.options) <= FEW
        shown = {key: option for key, option in self.options.items() if whole or option.common}
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for section in self._action_groups:
            arguments = [
                action
                for action in section._group_actions
                if action.dest in shown or section is self._more or not action.option_strings
            ]
            formatter.start_section(section.title)
            formatter.add_arguments(arguments)
            formatter.end_section()
        examples = "".join(f"  {example}\n" for example in self.examples)
        named = {name for option in shown.values() if option.takes_value for name in option.metavar.split("|")}
        kinds = "".join(f"  {name:<6}{about}\n" for name, about in KINDS.items() if name in named)
        more = len(self.options) - len(shown)
        return (
            f"examples:\n{examples}\n{formatter.format_help()}"
            + (f"\nvalues:\n{kinds}" if kinds else "")
            + (f"\n{more} more options: {self.prog} --help-all\n" if more else "")
        )

    def error(self, message: str) -> NoReturn:
        _, unknown, rest = message.partition("unrecognized arguments: ")
        if unknown:
            word = (rest.split() or [""])[0].partition("=")[0]
            if not word.startswith("-"):
                raise InputError(
                    f"unexpected argument {word!r}; every value follows its option, see {self.prog} --help"
                )
            raise suggest("option", word, self._option_string_actions)
        raise InputError(message.removeprefix("argument "))

    def read(self, argv: Sequence[str]) -> dict[str, Any] | None:
        """Return what `argv` gives, by key; None after `--help` or `--help-all` has been answered."""
        if {"-h", "--help", "--help-all"} & set(argv):
            print(self.help_text(whole="--help-all" in argv), end="")
            return None
        given = vars(self.parse_args(argv))
        for key, value in given.items():
            if value == [] or (isinstance(value, list) and [] in value):  # argparse takes `--flag=--` for no value
                raise InputError(f"{self.options[key].flag} is '--', which is no value")
        self._keep_what_is_read(given)
        return given

    def _keep_what_is_read(self, given: dict[str, Any]) -> None:
        """Refuse to write over a file that is named as something to read."""
        written = [option for option in self.options.values() if option.writes and option.key in given]
        others = [value for key, value in given.items() if key not in {option.key for option in written}]
        texts = [text for value in others for text in (value if isinstance(value, list) else [value])]
        named = {path for text in texts if isinstance(text, str) for path in (text, text.partition("#")[0])}
        for option in written:
            path = given[option.key]
            if os.path.isfile(path) and any(os.path.isfile(each) and os.path.samefile(path, each) for each in named):
                raise InputError(f"{option.flag} is {shown(path)}, which is read; give the result a file of its own")

    @property
    def options(self) -> dict[str, Option]:
        """The options that take a value or are switches, by key; a key may have two switches."""
        return {option.key: option for group in self.groups for option in group.options}
