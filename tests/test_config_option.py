"""One declaration of an option: what follows from it, and that every spec's options are declared so."""

from __future__ import annotations

import unittest
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from servesim.config.fleet import FleetSpec
from servesim.config.loadgen import LoadSpec
from servesim.config.option import (
    check_fields,
    checks_of,
    count,
    given_of,
    groups_of,
    one_of,
    option,
    options_of,
    seconds,
    spec_of,
    switch,
    values_of,
)
from servesim.config.serve import ServeSpec
from servesim.config.server import ServerSpec
from servesim.config.workload import WorkloadSpec
from servesim.errors import InputError

COLOURS = {"red": "like fire", "blue": "like water"}


@dataclass(slots=True, frozen=True, kw_only=True)
class Kettle:
    """A spec as any other."""

    cups: int = option(2, count(maximum=10), "how many", group="water")
    boil_s: float = option(90.0, seconds(), "how long", "TIME")
    colour: str = option("red", one_of("colour", COLOURS), "one of {choices}: {each}", "NAME", group="looks")
    whistle: bool = option(True, switch, "be loud", no="be still", after="cups")
    lid: str | None = option(None, one_of("lid", COLOURS), "of the lid", "NAME", shown_default="none", when_used=True)

    def __post_init__(self) -> None:
        check_fields(self)


class Declaration(unittest.TestCase):
    def test_flags_keys_and_defaults_follow_from_the_field(self) -> None:
        self.assertEqual(
            [(each.flag, each.key, each.default, each.group) for each in options_of(Kettle)],
            [
                ("--cups", "cups", "2", "water"),
                ("--whistle", "whistle", "", "water"),
                ("--no-whistle", "whistle", "", "water"),
                ("--boil", "boil_s", "90s", "water"),
                ("--colour", "colour", "red", "looks"),
                ("--lid", "lid", "none", "looks"),
            ],
        )
        self.assertEqual([group.title for group in groups_of(Kettle)], ["water", "looks"])
        self.assertEqual(options_of(Kettle, "colour")[0].about, "one of red, blue: red: like fire; blue: like water")

    def test_a_value_is_checked_whoever_gives_it(self) -> None:
        self.assertEqual(Kettle(boil_s="2min").boil_s, 120.0)  # type: ignore[arg-type]
        wrong: tuple[dict[str, Any], ...] = ({"cups": 11}, {"colour": "reed"}, {"whistle": "yes"})
        for values in wrong:
            with self.subTest(**values), self.assertRaises(InputError):
                Kettle(**values)

    def test_a_spec_takes_what_is_its_own_and_names_what_is_used(self) -> None:
        values = {"lid": "blue", "cups": None, "handle": 3}
        self.assertEqual(given_of(Kettle, values), {"lid": "blue"})
        self.assertEqual(spec_of(Kettle, values), Kettle(lid="blue"))
        self.assertNotIn("lid", values_of(Kettle()))
        self.assertEqual(values_of(Kettle(lid="blue"))["lid"], "blue")


class Specs(unittest.TestCase):
    def test_every_field_of_every_spec_is_an_option_of_a_verb(self) -> None:
        for spec, verb in (
            (ServerSpec, "simulate"),
            (WorkloadSpec, "simulate"),
            (FleetSpec, "simulate"),
            (LoadSpec, "loadgen"),
            (ServeSpec, "serve"),
        ):
            names = [each.name for each in fields(spec)]
            self.assertEqual(names, list(dict.fromkeys(sorted(checks_of(spec), key=names.index))))
            known = import_module(f"servesim.cli.{verb}").build_parser().options
            self.assertLessEqual(set(names), known.keys())
            for each in options_of(spec):
                with self.subTest(option=each.flag):
                    self.assertTrue(each.help)
                    self.assertEqual(known[each.key].help, options_of(spec, each.key)[-1].help)


if __name__ == "__main__":
    unittest.main()
