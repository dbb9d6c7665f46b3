"""Quantities: what a person may type, what is refused and how, and what is printed."""

from __future__ import annotations

import doctest
import math
import unittest
from collections.abc import Callable

from servesim import units
from servesim.errors import InputError

NONSENSE = [
    *("", " ", "none", "None", "nan", "NaN", "inf", "-inf", "Infinity", "true", "1_000", "0x10", "1e", "e5", "."),
    *(
        "1.",
        "1,5",
        "\u0661\u0662",
        "\uff11\uff10",
        "1 0",
        "1e9999",
        "1e400",
        "--5",
        "+",
        "-",
        "9" * 400,
        "5\n",
        "5\x00",
    ),
    *("1e-", "k", "ms", "5 ", "5kk", "\ud800", "1/2", "5%", "~5", "five"),
]


class Parsing(unittest.TestCase):
    def test_a_count_takes_whole_numbers_with_or_without_a_suffix(self) -> None:
        for text, count in {
            "256": 256,
            "10k": 10_000,
            "10K": 10_000,
            "1.5M": 1_500_000,
            "32Ki": 32_768,
            "+7": 7,
            "1e3": 1000,
            "0.5k": 500,
            "8.03B": 8_030_000_000,
            ".5k": 500,
            "12.345678k": None,
            "1.5": None,
            "1e-1": None,
        }.items():
            with self.subTest(text=text):
                if count is None:
                    self.assertRaises(InputError, units.parse_count, text)
                else:
                    self.assertEqual(units.parse_count(text), count)

    def test_a_count_takes_a_json_number_only_if_it_is_whole_and_no_boolean(self) -> None:
        self.assertEqual(units.parse_count(12), 12)
        self.assertEqual(units.parse_count(12.0), 12)
        hostile: tuple[object, ...] = (
            True,
            False,
            1.5,
            math.nan,
            math.inf,
            None,
            [],
            {},
            10**400,
            -(10**5000),
            b"5",
            1j,
        )
        for value in hostile:
            with self.subTest(value=units.shown(value)):
                self.assertRaises(InputError, units.parse_count, value)

    def test_a_count_keeps_its_bounds_and_says_them(self) -> None:
        self.assertEqual(units.parse_count("0", minimum=0), 0)
        with self.assertRaisesRegex(InputError, r"^requests is '0', must be 1 or more$"):
            units.parse_count("0", "requests")
        with self.assertRaisesRegex(InputError, r"^port is '70k', must be at most 65535$"):
            units.parse_count("70k", "port", maximum=65535)
        with self.assertRaisesRegex(InputError, "at most 9007199254740992"):
            units.parse_count("1e30")

    def test_a_duration_takes_a_unit_and_gives_seconds(self) -> None:
        for text, seconds in {
            "250ms": 0.25,
            "30s": 30.0,
            "5m": 300.0,
            "1h": 3600.0,
            "1.5min": 90.0,
            "2d": 172_800.0,
            "0": 0.0,
            "70us": 70e-6,
            "70\u00b5s": 70e-6,
            "3ns": 3e-9,
            "0.1s": 0.1,
            "1e3 ms": 1.0,
            "0s": 0.0,
        }.items():
            with self.subTest(text=text):
                self.assertEqual(units.parse_duration(text), seconds)
        for text in ("30", "1.5", "-1s", "5S", "5M", "5 hours", "1e999s"):
            with self.subTest(text=text):
                self.assertRaises(InputError, units.parse_duration, text)
        with self.assertRaisesRegex(InputError, "^timeout is '0s', must be above 0$"):
            units.parse_duration("0s", "timeout", positive=True)

    def test_a_bandwidth_tells_bytes_from_bits(self) -> None:
        for text, value in {"25GB/s": 25e9, "400Gb/s": 50e9, "100Gbit/s": 12.5e9, "1GiB/s": 2.0**30}.items():
            self.assertEqual(units.parse_bandwidth(text), value)
        for text in ("25", "25GB", "25gb/s", "0GB/s", "-1GB/s", "0"):
            with self.subTest(text=text):
                self.assertRaises(InputError, units.parse_bandwidth, text)

    def test_bytes_tell_powers_of_ten_from_powers_of_two(self) -> None:
        for text, value in {"64GB": 64 * 10**9, "16GiB": 16 * 2**30, "1.5 KiB": 1536, "0": 0, "7B": 7}.items():
            self.assertEqual(units.parse_bytes(text), value)
        for text in ("64", "64gb", "-1GB", "1e40GB"):
            with self.subTest(text=text):
                self.assertRaises(InputError, units.parse_bytes, text)

    def test_a_range_has_a_smaller_and_a_larger_end(self) -> None:
        self.assertEqual(units.parse_range("256-1024"), (256, 1024))
        self.assertEqual(units.parse_range("256"), (256, 256))
        self.assertEqual(units.parse_range("1k-2k"), (1000, 2000))
        for text in ("1024-256", "-5", "5-", "-", "1-2-3", "0-5", "a-b", "1--2"):
            with self.subTest(text=text):
                self.assertRaises(InputError, units.parse_range, text)
        with self.assertRaisesRegex(InputError, "begin with its smaller end: 256-1024"):
            units.parse_range("1024-256", "prompt-tokens")

    def test_a_list_is_parsed_item_by_item_and_has_no_holes(self) -> None:
        self.assertEqual(units.parse_list("1, 8,32", units.parse_count), [1, 8, 32])
        self.assertEqual(units.parse_list("1-2,3", units.parse_range), [(1, 2), (3, 3)])
        for text in ("", ",", "1,,2", "1,"):
            with self.subTest(text=text):
                self.assertRaises(InputError, units.parse_list, text, units.parse_count)
        with self.assertRaisesRegex(InputError, "at most 3"):
            units.parse_list("1,2,3,4", units.parse_count, "rate", limit=3)

    def test_a_finite_number_is_finite_and_within_its_bounds(self) -> None:
        self.assertEqual(units.parse_finite("0.92"), 0.92)
        self.assertEqual(units.parse_finite("-2.5e1"), -25.0)
        self.assertEqual(units.parse_finite(3), 3.0)
        for value in (True, math.nan, math.inf, -math.inf, 10**400, None, "1e400"):
            self.assertRaises(InputError, units.parse_finite, value)
        with self.assertRaisesRegex(InputError, "^rate is '0', must be above 0$"):
            units.parse_finite("0", "rate", above=0)
        self.assertRaises(InputError, units.parse_finite, "1.1", "share", maximum=1)
        self.assertRaises(InputError, units.parse_finite, "-0.1", "share", minimum=0)

    def test_nonsense_is_refused_by_every_parser_in_one_line_that_names_it(self) -> None:
        parsers: list[Callable[[str, str], object]] = [
            *(units.parse_count, units.parse_duration, units.parse_bandwidth, units.parse_bytes, units.parse_range),
            units.parse_finite,
        ]
        for parse in parsers:
            for text in NONSENSE:
                with self.subTest(parser=parse.__name__, text=text[:20]):
                    with self.assertRaises(InputError) as caught:
                        parse(text, "the-flag")
                    message = str(caught.exception)
                    self.assertTrue(message.startswith("the-flag is "), message)
                    self.assertIn("must be", message)
                    self.assertLess(len(message), 200)
                    self.assertTrue(message.isprintable(), message)


class Suggesting(unittest.TestCase):
    CHOICES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "l4-24gb", "l40s-48gb", "apple-m4-pro")

    def test_the_nearest_name_is_suggested(self) -> None:
        for typed, meant in {
            "h10": "h100-sxm-80gb",
            "H100": "h100-sxm-80gb",
            "l4": "l4-24gb",
            "m4-pro": "apple-m4-pro",
            "a100-smx-80gb": "a100-sxm-80gb",
            "l40": "l40s-48gb",
            "h200": "h200-sxm-141gb",
        }.items():
            with self.subTest(typed=typed):
                self.assertIn(f"did you mean '{meant}'?", str(units.suggest("hardware", typed, self.CHOICES)))

    def test_a_name_that_resembles_nothing_gets_the_choices(self) -> None:
        for typed in ("xyzzy", "", "   ", "\n", "q" * 5000):
            message = str(units.suggest("hardware", typed, self.CHOICES))
            self.assertIn("choose from a100-sxm-80gb, h100", message)
            self.assertTrue(message.isprintable())
            self.assertLess(len(message), 300)
        self.assertIn("... (40 in all)", str(units.suggest("x", "?", [f"name{i}" for i in range(40)])))


class Formatting(unittest.TestCase):
    def test_the_unknown_prints_a_dash_and_zero_prints_zero(self) -> None:
        formats: list[Callable[[float | None], str]] = [
            *(units.format_number, units.format_ms, units.format_duration, units.format_gib, units.format_gb),
            *(units.format_bytes, units.format_si),
        ]
        for form in formats:
            self.assertEqual(form(None), "-")
            self.assertTrue(form(0).startswith("0"), form(0))

    def test_a_duration_is_printed_in_the_unit_that_fits(self) -> None:
        for seconds, text in {
            85e-6: "85.0 us",
            0.0724: "72.4 ms",
            3.514: "3.51 s",
            303.2: "5 min 3 s",
            7500.0: "2 h 5 min",
            0.99999: "1.00 s",
            59.999: "1 min",
            3599.9: "1 h",
            60.0: "1 min",
            3600.0: "1 h",
            -0.5: "-500.0 ms",
            1e9: "277,777 h 47 min",
            1e300: "2.78e+296 h",
            math.inf: "inf h",
        }.items():
            with self.subTest(seconds=seconds):
                self.assertEqual(units.format_duration(seconds), text)

    def test_sizes_that_are_compared_never_look_alike_unless_they_are(self) -> None:
        for other, expected in (
            (3 * 2**30, ("4.00 GiB", "3.00 GiB")),
            (4 * 2**30 - 1, ("4.000000000 GiB", "3.999999999 GiB")),
            (4 * 2**30 - 2**21, ("4.000 GiB", "3.998 GiB")),
            (4 * 2**30, ("4.00 GiB", "4.00 GiB")),
        ):
            self.assertEqual(units.format_gib_apart(4 * 2**30, other), expected)

    def test_bytes_say_which_unit_they_are_in(self) -> None:
        self.assertEqual(units.format_gb(16.06e9), "16.06 GB")
        self.assertEqual(units.format_gib(20.25 * 2**30), "20.25 GiB")
        self.assertEqual(units.format_bytes(131_072), "128.0 KiB")
        self.assertEqual(units.format_bytes(960), "960 B")

    def test_a_count_is_printed_short(self) -> None:
        for value, text in {
            950: "950",
            10_000: "10k",
            1_500_000: "1.5M",
            8.03e9: "8.03B",
            999_960: "1M",
            134_500_000: "134.5M",
            12.5: "12.5",
        }.items():
            self.assertEqual(units.format_si(value), text)


class Documentation(unittest.TestCase):
    def test_the_examples_in_the_docstrings_are_true(self) -> None:
        self.assertEqual(doctest.testmod(units).failed, 0)


if __name__ == "__main__":
    unittest.main()
