"""Tests of metric pages: a lexer that knows quotes, escapes and odd numbers, and what it writes it can read."""

from __future__ import annotations

import math
import random
import unittest

from servesim.wire.prometheus import (
    Family,
    Sample,
    format_number,
    format_page,
    format_sample,
    histogram,
    parse_page,
    parse_sample,
    single,
)


class SampleTest(unittest.TestCase):
    def test_names_may_hold_colons(self) -> None:
        self.assertEqual(
            parse_sample("llamacpp:prompt_tokens_total 5"), Sample("llamacpp:prompt_tokens_total", {}, 5.0)
        )

    def test_numbers_come_in_every_form_that_servers_write(self) -> None:
        for text, value in (
            ("1.5e+06", 1.5e6),
            ("1E3", 1e3),
            ("-0.5", -0.5),
            ("+Inf", math.inf),
            ("-Inf", -math.inf),
            ("inf", math.inf),
            (".5", 0.5),
            ("5.", 5.0),
        ):
            self.assertEqual(parse_sample(f"x_total {text}").value, value)
        self.assertTrue(math.isnan(parse_sample("a NaN").value))

    def test_labels_know_quotes_and_escapes(self) -> None:
        sample = parse_sample(r'm{a="x, y=\"z\"} 1",b="C:\\dir\n\q",c="",d="{le=\"1\"}"} 2')
        self.assertEqual(sample.labels, {"a": 'x, y="z"} 1', "b": "C:\\dir\n\\q", "c": "", "d": '{le="1"}'})
        self.assertEqual(sample.value, 2.0)

    def test_blanks_and_a_trailing_comma_are_allowed_where_the_format_allows_them(self) -> None:
        for line in ('m {a="1",b="2"} 3', 'm{ a = "1" , b = "2" , }\t3', 'm{a="1",b="2",}3'):
            self.assertEqual(parse_sample(line), Sample("m", {"a": "1", "b": "2"}, 3.0), line)
        self.assertEqual(parse_sample("m{} 3"), Sample("m", {}, 3.0))

    def test_timestamps_and_exemplars_do_not_disturb_the_value(self) -> None:
        self.assertEqual(parse_sample("m 3 1395066363000"), Sample("m", {}, 3.0, 1395066363000.0))
        self.assertEqual(parse_sample('m{a=" # "} 3 # {trace_id="x"} 0.5 1.0'), Sample("m", {"a": " # "}, 3.0))

    def test_quoted_names_are_read(self) -> None:
        self.assertEqual(parse_sample('{"my.metric",a="1"} 3'), Sample("my.metric", {"a": "1"}, 3.0))
        self.assertEqual(parse_sample('m{"my.label"="1"} 3'), Sample("m", {"my.label": "1"}, 3.0))

    def test_what_is_no_sample_is_refused(self) -> None:
        for line in (
            "m",
            "m x",
            "1m 5",
            "m 1 2 3",
            "m 1_000",
            'm{a="1} 5',
            'm{a="1" b="2"} 5',
            "m{a=1} 5",
            'm{="1"} 5',
            "m{a} 5x",
            'm{a="1"',
            "m 0x10",
            "{} 5",
            'm{a="1\\',
        ):
            with self.subTest(line=line), self.assertRaises(ValueError):
                parse_sample(line)


class PageTest(unittest.TestCase):
    def test_one_nan_costs_one_sample_and_not_the_page(self) -> None:
        page = parse_page("a NaN\nb 1\nc +Inf")
        self.assertEqual([sample.value for sample in page.finite("b")], [1.0])
        self.assertEqual((page.finite("a"), page.finite("c"), page.finite("d")), ([], [], []))
        self.assertEqual(page.samples["c"][0].value, math.inf)

    def test_a_line_that_cannot_be_read_is_counted_and_passed_over(self) -> None:
        page = parse_page('a 1\n<html>\nb{x="1} 2\nc 3\r\n\n  d 4\n')
        self.assertEqual((sorted(page.samples), page.malformed_lines), (["a", "c", "d"], 2))

    def test_types_and_help_are_kept_and_comments_are_not(self) -> None:
        page = parse_page("# HELP a:b What  it is\n# TYPE a:b counter\n# just words\n#\na:b 1\n# EOF")
        self.assertEqual((page.types, page.helps), ({"a:b": "counter"}, {"a:b": "What  it is"}))

    def test_series_of_one_name_stay_apart_and_in_order(self) -> None:
        page = parse_page('r{engine="0"} 3\nr{engine="1"} 4')
        self.assertEqual(
            [(sample.labels["engine"], sample.value) for sample in page.samples["r"]], [("0", 3.0), ("1", 4.0)]
        )

    def test_only_wanted_names_are_read_when_asked_so(self) -> None:
        page = parse_page('a 1\nab 2\n{"a"} 3\nb x', wanted={"a"})
        self.assertEqual({name: len(samples) for name, samples in page.samples.items()}, {"a": 2})
        self.assertEqual(page.malformed_lines, 0)

    def test_an_empty_page_is_a_page(self) -> None:
        self.assertEqual(parse_page("").samples, {})


class WritingTest(unittest.TestCase):
    def test_a_page_is_written_as_servers_write_it(self) -> None:
        families = [
            single("s:running", "gauge", "Requests running.\nNow", [({"engine": "0"}, 3), ({"engine": "1"}, 4.5)]),
            histogram("s:ttft_seconds", "TTFT", {"engine": "0"}, bounds=[0.1, 1], counts=[2, 0, 1], total=5.25),
        ]
        self.assertEqual(
            format_page(families),
            "# HELP s:running Requests running.\\nNow\n"
            "# TYPE s:running gauge\n"
            's:running{engine="0"} 3.0\n'
            's:running{engine="1"} 4.5\n'
            "# HELP s:ttft_seconds TTFT\n"
            "# TYPE s:ttft_seconds histogram\n"
            's:ttft_seconds_bucket{engine="0",le="0.1"} 2.0\n'
            's:ttft_seconds_bucket{engine="0",le="1.0"} 2.0\n'
            's:ttft_seconds_bucket{engine="0",le="+Inf"} 3.0\n'
            's:ttft_seconds_sum{engine="0"} 5.25\n'
            's:ttft_seconds_count{engine="0"} 3.0\n',
        )
        self.assertEqual(format_page([]), "")
        self.assertEqual(format_sample(Sample("m", {}, 1.0, 5.0)), "m 1.0 5")

    def test_numbers_are_written_so_that_they_read_back_exactly(self) -> None:
        for value in (0.1, 1e22, 5e-324, 123456789.123456789, math.inf, -math.inf):
            self.assertEqual(parse_sample(f"m {format_number(value)}").value, value)
        self.assertEqual(format_number(math.nan), "NaN")

    def test_any_label_value_survives_the_round_trip(self) -> None:
        alphabet = ['"', "\\", "\n", "{", "}", ",", "=", " ", "#", "n", "中", "\u2028", "\x85", "\r"]
        for seed in range(300):
            rng = random.Random(seed)
            labels = {f"l{i}": "".join(rng.choices(alphabet, k=rng.randint(0, 6))) for i in range(rng.randint(0, 3))}
            sample = Sample("m:x", labels, rng.uniform(-1e9, 1e9))
            family = Family(name="m:x", kind="gauge", about="\\n", samples=(sample,))
            with self.subTest(seed=seed):
                self.assertEqual(parse_page(format_page([family])).samples["m:x"], [sample])


if __name__ == "__main__":
    unittest.main()
