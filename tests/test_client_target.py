"""Tests of the target: addresses as people write them, secrets that stay secret, proxies only when asked for."""

from __future__ import annotations

import doctest
import http.client
import socket
import ssl
import unittest
from typing import ClassVar

from servesim.client import target as target_module
from servesim.client.fetch import Fetcher
from servesim.client.pool import describe_failure
from servesim.client.target import parse_header, parse_target
from servesim.errors import InputError

CHAT = "/v1/chat/completions"


class AddressTest(unittest.TestCase):
    def test_every_spelling_of_a_base_url_leads_to_one_path(self) -> None:
        for url in (
            "http://h:1/x",
            "http://h:1/x/",
            "http://h:1/x/v1",
            "http://h:1/x/v1/",
            "http://h:1/x//v1",
            "http://h:1/x/v1/chat/completions",
            "http://h:1/x/v1/chat/completions/",
            "http://h:1/x/v1/completions",
            "http://h:1/x/completion",
            "http://h:1/x/api/chat",
            "http://h:1/x/generate_stream",
            "h:1/x",
        ):
            with self.subTest(url=url):
                target = parse_target(url)
                self.assertEqual(target.path(CHAT), "/x/v1/chat/completions")
                self.assertEqual(target.path("/metrics"), "/x/metrics")
                self.assertEqual(target.path("/completion"), "/x/completion")
                self.assertEqual((target.host, target.port, target.url), ("h", 1, "http://h:1/x"))

    def test_a_base_url_without_a_path(self) -> None:
        for url in ("http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/", " h:8000 "):
            with self.subTest(url=url):
                target = parse_target(url)
                self.assertEqual((target.path(CHAT), target.path("/health")), (CHAT, "/health"))

    def test_another_version_segment_or_none_is_kept_as_given(self) -> None:
        self.assertEqual(parse_target("http://h/api/v4").path(CHAT), "/api/v4/chat/completions")
        self.assertEqual(parse_target("http://h/api/v4").path("/metrics"), "/api/metrics")
        azure = parse_target("https://h/openai/deployments/d/chat/completions?api-version=2024-06-01")
        self.assertEqual(azure.path(CHAT), "/openai/deployments/d/chat/completions?api-version=2024-06-01")
        self.assertNotIn("2024", azure.url + repr(azure))

    def test_ports_default_by_scheme(self) -> None:
        self.assertEqual((parse_target("http://h").port, parse_target("https://h").port), (80, 443))
        self.assertEqual((parse_target("HTTPS://H/").netloc, parse_target("https://h:8443").netloc), ("h", "h:8443"))

    def test_ipv6_keeps_its_brackets_on_the_wire_and_loses_them_for_the_socket(self) -> None:
        target = parse_target("http://[::1]:18081/v1")
        self.assertEqual((target.host, target.port, target.netloc), ("::1", 18081, "[::1]:18081"))
        self.assertEqual(target.url, "http://[::1]:18081")
        connection = target.connection(1.0)
        self.assertEqual((connection.host, connection.port), ("::1", 18081))

    def test_letters_beyond_ascii_go_out_as_a_browser_sends_them(self) -> None:
        target = parse_target("http://b\u00fccher.example/\u00fc%20/v1?k=\u00fc&a=b")
        self.assertEqual((target.host, target.netloc), ("xn--bcher-kva.example", "xn--bcher-kva.example"))
        self.assertEqual(target.path(CHAT), "/%C3%BC%20/v1/chat/completions?k=%C3%BC&a=b")

    def test_what_is_no_address_is_refused_in_one_line(self) -> None:
        for url, part in (
            ("", "names no host"),
            ("http://", "names no host"),
            ("ftp://h", "must begin with http"),
            ("http://h:99999", "not a URL"),
            ("http://h:x", "not a URL"),
            ("http://::1:8000", "brackets"),
            ("http://[::1", "not a URL"),
            ("http://a b", "holds a blank"),
            ("http://h/a b", "holds a blank"),
            ("http://a..b", "a part of the host's name is empty or too long"),
            (f"http://{'a' * 64}.b", "a part of the host's name is empty or too long"),
            ("http://h:0", "nobody listens on port 0"),
            ("http://user:secret@h", "credentials"),
        ):
            with self.subTest(url=url), self.assertRaisesRegex(InputError, part) as caught:
                parse_target(url)
            self.assertNotIn("secret", str(caught.exception))


class SecretTest(unittest.TestCase):
    def test_the_api_key_goes_to_every_request_and_nowhere_else(self) -> None:
        target = parse_target("http://h", api_key_env="KEY", environ={"KEY": "s3cret\n"})
        self.assertEqual(target.request_headers()["Authorization"], "Bearer s3cret")
        self.assertNotIn("s3cret", repr(target) + target.url)

    def test_the_api_key_beats_a_header_of_the_same_name(self) -> None:
        target = parse_target("http://h", headers=["authorization: Basic x"], api_key_env="KEY", environ={"KEY": "k"})
        self.assertEqual(
            [pair for pair in target.headers if pair[0].lower() == "authorization"], [("Authorization", "Bearer k")]
        )

    def test_a_key_that_is_not_set_or_cannot_be_sent_is_bad_input(self) -> None:
        for environ in ({}, {"KEY": " "}, {"KEY": "s3cret\u4e2d"}, {"KEY": "s3cret\r\nX: y"}):
            with self.subTest(environ=environ), self.assertRaises(InputError) as caught:
                parse_target("http://h", api_key_env="KEY", environ=environ)
            self.assertIn("KEY", str(caught.exception))
            self.assertNotIn("s3cret", str(caught.exception))

    def test_headers(self) -> None:
        self.assertEqual(parse_header("X-Team: search: all"), ("X-Team", "search: all"))
        self.assertEqual(parse_header("Empty:"), ("Empty", ""))
        for text in ("no colon", ": x", "a b: x", "X: a\nY: b", "Content-Length: 3", "Transfer-Encoding: chunked"):
            with self.subTest(text=text), self.assertRaises(InputError):
                parse_header(text)

    def test_compressed_streams_are_not_asked_for(self) -> None:
        self.assertEqual(parse_target("http://h").request_headers()["Accept-Encoding"], "identity")


class WayTest(unittest.TestCase):
    environ: ClassVar = {
        "http_proxy": "http://dead:9",
        "HTTPS_PROXY": "http://u:p%40@dead:9",
        "no_proxy": "localhost,.corp",
    }

    def test_the_environments_proxy_is_not_used_unless_asked_for(self) -> None:
        self.assertIsNone(parse_target("http://h", environ=self.environ).proxy)
        self.assertEqual(parse_target("http://h", environ=self.environ).connection(1.0).host, "h")

    def test_a_proxy_from_the_environment_spares_no_proxy(self) -> None:
        for url, proxied in (("http://h", True), ("http://localhost:1", False), ("http://a.corp", False)):
            with self.subTest(url=url):
                target = parse_target(url, proxy="env", environ=self.environ)
                self.assertEqual(target.proxy is not None, proxied)
        self.assertIsNone(parse_target("http://h", proxy="env", environ={}).proxy)

    def test_plain_http_through_a_proxy_names_the_whole_url(self) -> None:
        target = parse_target("http://h:1/x", proxy="http://p:3128")
        self.assertEqual(target.request_target(CHAT), "http://h:1/x/v1/chat/completions")
        connection = target.connection(1.0)
        self.assertEqual((connection.host, connection.port), ("p", 3128))

    def test_https_through_a_proxy_is_a_tunnel(self) -> None:
        target = parse_target("https://h", proxy="env", environ=self.environ)
        self.assertEqual(target.request_target(CHAT), CHAT)
        self.assertNotIn("Proxy-Authorization", target.request_headers())
        connection = target.connection(1.0)
        self.assertEqual((connection.host, connection.port), ("dead", 9))
        self.assertEqual(connection._tunnel_host, "h")  # type: ignore[attr-defined]
        self.assertNotIn("p%40", repr(target))

    def test_it_is_the_proxy_that_cannot_be_reached_where_there_is_one(self) -> None:
        refused, unknown = ConnectionRefusedError(), socket.gaierror(-2, "Name or service not known")
        for proxy, host, where in ((None, "h", "http://h: .*the server"), ("http://p:9", "p", "the proxy p:9: .*it")):
            target = parse_target("http://h", proxy=proxy)
            for error, told in ((refused, f"cannot connect to {where} running"), (unknown, f"cannot resolve '{host}'")):
                self.assertRegex(describe_failure(target, error)[1], told)
                self.assertRegex(str(Fetcher(target)._failed(error)), told)

    def test_a_proxy_that_is_no_address_is_bad_input(self) -> None:
        for proxy in ("http://[::1", "p:many", "p..q:1", "socks5://p:1", "http://"):
            with self.subTest(proxy=proxy), self.assertRaisesRegex(InputError, "proxy"):
                parse_target("http://h", proxy=proxy)

    def test_insecure_accepts_any_certificate_and_the_default_none_unknown(self) -> None:
        checked = parse_target("https://h").tls_context()
        self.assertEqual((checked.verify_mode, checked.check_hostname), (ssl.CERT_REQUIRED, True))
        unchecked = parse_target("https://h", insecure=True).tls_context()
        self.assertEqual((unchecked.verify_mode, unchecked.check_hostname), (ssl.CERT_NONE, False))
        self.assertIsInstance(parse_target("https://h").connection(1.0), http.client.HTTPSConnection)

    def test_a_ca_file_that_cannot_be_read_is_bad_input(self) -> None:
        with self.assertRaisesRegex(InputError, "cannot read /does/not/exist.pem: no such file"):
            parse_target("https://h", ca_file="/does/not/exist.pem")


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (target_module,):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
