"""A connection is told what its socket gave: the same exchange comes out however the bytes were cut."""

from __future__ import annotations

import socket
import unittest
from dataclasses import replace

from servesim.client.connection import Connection, Exchange, Heads, State, open_socket, request_bytes
from servesim.client.target import parse_target
from servesim.wire.faults import ProtocolError
from tests.truth_server import DONE, FINISH, HEAD_OF_STREAM, LAST_CHUNK, ROLE, chunk, content, event, usage

TARGET = parse_target("http://127.0.0.1:1")
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
STREAM = (
    HEAD_OF_STREAM
    + chunk(event(ROLE))
    + chunk(event(content("a")) + event(content("中")))
    + chunk(event(FINISH) + event(usage(2)) + DONE)
    + LAST_CHUNK
)


class ConnectionTest(unittest.TestCase):
    def setUp(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setblocking(False)
        self.addCleanup(ours.close)
        self.addCleanup(self.theirs.close)
        self.connection = Connection(TARGET, ours, "sse", Heads())

    def begin(self) -> Exchange:
        exchange = Exchange(0, TARGET, b"{}", b"POST / HTTP/1.1\r\n\r\n")
        self.connection.start(exchange)
        self.assertTrue(self.connection.write())
        self.assertEqual(self.theirs.recv(100), exchange.request)
        self.assertEqual(self.connection.state, State.HEAD)
        return exchange

    def test_any_cut_of_the_bytes_gives_the_same_events_and_a_connection_to_use_again(self) -> None:
        text = EARLY + STREAM
        whole = self.begin()
        self.assertTrue(self.connection.receive(text, 1.0))
        self.connection.release()
        for cut in range(1, len(text)):
            with self.subTest(cut=cut):
                exchange = self.begin()
                self.assertFalse(self.connection.receive(text[:cut], 1.0))
                self.assertTrue(self.connection.receive(text[cut:], 2.0))
                self.connection.release()
                self.assertEqual(self.connection.state, State.IDLE)
                self.assertEqual([e.data for e in exchange.events], [e.data for e in whole.events])
                stamps = [e.stamp for e in exchange.events]
                self.assertEqual(stamps, sorted(stamps))
                self.assertEqual(exchange.end_s, 2.0)

    def test_byte_by_byte_each_event_has_the_stamp_of_its_lines_last_byte(self) -> None:
        exchange = self.begin()
        ends = [self.connection.receive(STREAM[i : i + 1], float(i)) for i in range(len(STREAM))]
        self.assertEqual(ends.index(True), len(STREAM) - 1)
        for found in exchange.events:
            line_end = STREAM.index(found.data) + len(found.data)  # its newline
            self.assertEqual(found.stamp, float(line_end))

    def test_a_connection_is_not_used_again_when_it_must_not_be(self) -> None:
        body = chunk(event(FINISH)) + LAST_CHUNK
        for name, text in {
            "it says so": b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body,
            "old": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "bytes that belong to nobody": HEAD_OF_STREAM + body + b"HTTP/1.1 200 OK\r\n",
            "no HTTP": HEAD_OF_STREAM + b"zz\r\n",
        }.items():
            with self.subTest(name):
                self.begin()
                self.assertTrue(self.connection.receive(text, 1.0))
                self.connection.release()
                self.assertEqual(self.connection.state, State.CLOSED)

    def test_an_answer_before_the_request_was_out_ends_the_connection(self) -> None:
        exchange = Exchange(0, TARGET, b"", b"x" * (16 << 20))
        self.connection.start(exchange)
        self.assertFalse(self.connection.write())
        self.assertTrue(self.connection.receive(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", 1.0))
        self.connection.release()
        self.assertEqual((exchange.status, self.connection.state), (413, State.CLOSED))

    def test_only_a_used_connection_without_a_byte_of_answer_is_stale(self) -> None:
        self.begin()
        self.assertFalse(self.connection.stale)
        self.connection.receive(STREAM, 1.0)
        self.connection.release()
        self.begin()
        self.assertTrue(self.connection.stale)
        self.connection.receive(b"H", 1.0)
        self.assertFalse(self.connection.stale)


class HeadsTest(unittest.TestCase):
    def test_line_feeds_alone_end_a_head_too(self) -> None:
        found = Heads().split(b"HTTP/1.1 200 OK\nA: b\n\nbody")
        assert found is not None
        self.assertEqual((found[0].status, found[0].fields, found[1]), (200, (("A", "b"),), b"body"))

    def test_what_cannot_become_a_head_is_refused_at_once(self) -> None:
        for data in (b"SSH-2.0\r\n", b"\x16\x03\x01", b"HTTP/1.1 abc\r\n\r\n", b"{"):
            with self.subTest(data), self.assertRaises(ProtocolError):
                Heads().split(data)
        self.assertIsNone(Heads().split(b"HTT"))

    def test_a_request_is_one_block_with_its_length(self) -> None:
        request = request_bytes("POST", "/v1/x?k=1", "[::1]:8", {"Accept-Encoding": "identity"}, b"{}")
        self.assertEqual(
            request,
            b"POST /v1/x?k=1 HTTP/1.1\r\nHost: [::1]:8\r\nAccept-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
        )


class OpeningTest(unittest.TestCase):
    def test_a_name_that_is_none_is_an_error_of_its_connection(self) -> None:
        for host in ("a..b", "a" * 64 + ".example"):
            with self.subTest(host=host), self.assertRaises(OSError):
                open_socket(replace(TARGET, host=host), 1.0)


if __name__ == "__main__":
    unittest.main()
