"""Requests of HTTP from bytes split anywhere, and what is refused."""

from __future__ import annotations

import random
import unittest

from servesim.serve.http import MAX_HEAD_BYTES, MAX_HEADERS, HttpError, HttpRequest, RequestReader, answer_head

POST = b'POST /v1/completions?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\nX-A: 1\r\nx-a: 2\r\n\r\n{"prompt":1}\n'
CHUNKED = (
    b"POST /a%20b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"
)
PLAIN = b"GET / HTTP/1.0\r\n\r\n"


def read_all(pieces: list[bytes], limit: int = 1000) -> list[HttpRequest]:
    reader = RequestReader(limit)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next_request()) is not None:
            found.append(request)
    return found


def status_of(data: bytes, limit: int = 1000) -> int:
    try:
        read_all([data], limit)
    except HttpError as error:
        return error.status
    return 0


class Reading(unittest.TestCase):
    def test_requests_are_the_same_however_they_are_split(self) -> None:
        data = POST + CHUNKED + b"\r\n" + PLAIN
        whole = read_all([data])
        self.assertEqual([request.path for request in whole], ["/v1/completions", "/a b", "/"])
        self.assertEqual([request.body for request in whole], [b'{"prompt":1}\n', b"abcde", b""])
        self.assertEqual(whole[0].headers["x-a"], "1, 2")
        self.assertEqual([request.keep_alive for request in whole], [True, True, False])
        for cut in range(len(data)):
            self.assertEqual(read_all([data[:cut], data[cut:]]), whole)
        self.assertEqual(read_all([data[at : at + 1] for at in range(len(data))]), whole)

    def test_the_connection_is_kept_as_the_client_asks(self) -> None:
        for head, kept in (
            (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False),
            (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, Close\r\n\r\n", False),
            (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        ):
            self.assertEqual(read_all([head])[0].keep_alive, kept)

    def test_a_whole_url_and_a_fragment_are_reduced_to_the_path(self) -> None:
        request = read_all([b"GET http://h:1/x?y=z#f HTTP/1.1\r\nHost: h\r\n\r\n"])[0]
        self.assertEqual((request.path, request.query), ("/x", "y=z"))

    def test_a_client_that_waits_for_a_word_is_noticed(self) -> None:
        reader = RequestReader(1000)
        reader.feed(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        self.assertIsNone(reader.next_request())
        self.assertTrue(reader.expects_continue)


class Refusing(unittest.TestCase):
    def test_what_is_not_http(self) -> None:
        host = b"Host: x\r\n"
        for status, data in (
            (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS hello"),
            (400, b"GET /\r\n\r\n"),
            (400, b"GET / HTTP/1.1\r\n\r\n"),
            (400, b"GET / HTTP/1.1\r\n" + host + host + b"\r\n"),
            (400, b"GET  / HTTP/1.1\r\n" + host + b"\r\n"),
            (400, b"GET / HTTP/1.1\r\n" + host + b" folded: 1\r\n\r\n"),
            (400, b"GET / HTTP/1.1\r\n" + host + b"Name : 1\r\n\r\n"),
            (400, b"GET / HTTP/1.1\r\n" + host + b"Name: a\0b\r\n\r\n"),
            (400, b"GET / HTTP/1.1\r\n" + host + b"Name: a\nb: c\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\n" + host + b"Content-Length: \xb2\r\n\r\n"),
            (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (400, b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            (501, b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
            (505, b"GET / HTTP/2.0\r\n" + host + b"\r\n"),
            (413, b"POST / HTTP/1.1\r\n" + host + b"Content-Length: 1001\r\n\r\n"),
            (413, b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001),
            (431, b"GET / HTTP/1.1\r\n" + host + b"a: b\r\n" * MAX_HEADERS + b"\r\n"),
            (431, b"GET / HTTP/1.1\r\nHost: " + b"x" * MAX_HEAD_BYTES),
        ):
            with self.subTest(data=data[:80]):
                self.assertEqual(status_of(data), status)

    def test_bytes_of_any_kind_are_a_request_or_refused_and_never_held_for_long(self) -> None:
        for seed in range(2000):
            draw = random.Random(seed)
            data = bytearray(draw.choice((POST, CHUNKED, PLAIN)) * 2)
            for _ in range(draw.randint(1, 8)):
                place = draw.randrange(len(data))
                data[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 4))
            reader = RequestReader(1000)
            try:
                for at in range(0, len(data), 7):
                    reader.feed(bytes(data[at : at + 7]))
                    while reader.next_request() is not None:
                        pass
            except HttpError as error:
                self.assertIn(error.status, (400, 413, 431, 501, 505))
            self.assertLess(reader.held_bytes, MAX_HEAD_BYTES + 2000)


class Answering(unittest.TestCase):
    def test_nothing_breaks_out_of_a_field(self) -> None:
        head = answer_head(200, [("x", "a\r\nset-cookie: b")], date="d")
        self.assertEqual(head, b"HTTP/1.1 200 OK\r\ndate: d\r\nserver: servesim\r\nx: a  set-cookie: b\r\n\r\n")


if __name__ == "__main__":
    unittest.main()
