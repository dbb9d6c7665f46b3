"""Tests of HTTP bodies: every framing, at every split point; what is not a body is refused in one line."""

from __future__ import annotations

import gzip
import itertools
import random
import unittest
import zlib

from servesim.wire.faults import ProtocolError
from servesim.wire.http_body import LAST_CHUNK, BodyDecoder, ChunkedBody, chunk_size, encode_chunk, open_body

CHUNKED = [("Transfer-Encoding", "chunked")]
EVENT = b'data: {"choices":[{"delta":{"content":"\xe4\xb8\xad"}}]}\n\n'


def decode(headers: list[tuple[str, str]], pieces: list[bytes], status: int = 200) -> tuple[bytes, BodyDecoder]:
    body = open_body(status, headers)
    return b"".join(body.feed(piece) for piece in pieces), body


def every_split(data: bytes) -> list[list[bytes]]:
    """Whole, byte by byte, and cut in two at every point."""
    cuts = [[data[:at], data[at:]] for at in range(len(data) + 1)]
    return [[data], [data[at : at + 1] for at in range(len(data))], *cuts]


class ChunkedTest(unittest.TestCase):
    def check(self, wire: bytes, expected: bytes) -> None:
        for pieces in every_split(wire):
            got, body = decode(CHUNKED, pieces)
            self.assertEqual(got, expected, pieces)
            self.assertTrue(body.complete, pieces)
            self.assertEqual(body.excess, b"")

    def test_a_body_of_several_chunks_reads_alike_however_it_is_split(self) -> None:
        self.check(encode_chunk(EVENT) + encode_chunk(b"data: [DONE]\n\n") + LAST_CHUNK, EVENT + b"data: [DONE]\n\n")

    def test_heartbeats_of_one_byte_do_not_break_the_framing(self) -> None:
        self.check(b"1\r\n:\r\n" * 3 + b"2\r\n\n\n\r\n0\r\n\r\n", b":::\n\n")

    def test_extensions_trailers_and_capital_digits_are_legal(self) -> None:
        self.check(
            b'A;name=value\r\n0123456789\r\n1 ; quoted="a b"\r\n.\r\n0;last\r\nX-Sum: 1\r\nY: 2\r\n\r\n', b"0123456789."
        )
        self.check(b"000a\r\n0123456789\r\n00\r\n\r\n", b"0123456789")

    def test_line_ends_inside_a_chunk_are_data(self) -> None:
        self.check(b"6\r\n\r\n0\r\n\r\r\n0\r\n\r\n", b"\r\n0\r\n\r")

    def test_a_chunk_size_is_hexadecimal_digits_and_nothing_else(self) -> None:
        for size in (
            b"0x5",
            b"+5",
            b"-5",
            b"-1",
            b"1_0",
            b" 5",
            b"5 ",
            b"",
            b"g",
            b"5h",
            b";x",
            b"1" * 17,
            "５".encode(),
        ):
            with self.subTest(size=size), self.assertRaises(ProtocolError):
                open_body(200, CHUNKED).feed(size + b"\r\nhello\r\n0\r\n\r\n")
        self.assertEqual(chunk_size(b"fF"), 255)

    def test_what_follows_a_chunk_is_the_end_of_a_line(self) -> None:
        for wire in (b"2\r\nabX\r\n", b"2\r\nab\rX", b"2\r\nab\n0\r\n\r\n", b"2\r\nabc\r\n0\r\n\r\n"):
            for pieces in every_split(wire):
                with self.subTest(pieces=pieces), self.assertRaises(ProtocolError):
                    decode(CHUNKED, pieces)

    def test_a_stream_that_only_claims_to_be_chunked_is_told_at_its_first_bytes(self) -> None:
        with self.assertRaisesRegex(ProtocolError, "chunk size b'data: .* is not a hexadecimal number"):
            open_body(200, CHUNKED).feed(b"data: {}\n\n")

    def test_memory_is_bounded_for_headers_and_trailers(self) -> None:
        endless = itertools.repeat(b"x" * 1000, 200)
        for start in (b"5;", b"0\r\nX: "):
            body = open_body(200, CHUNKED)
            body.feed(start)
            with self.subTest(start=start), self.assertRaisesRegex(ProtocolError, "longer than"):
                for piece in endless:
                    body.feed(piece)
        with self.assertRaisesRegex(ProtocolError, "chunk header is longer"):
            open_body(200, CHUNKED).feed(b"5;" + b"x" * 5000 + b"\r\nhello\r\n")
        with self.assertRaisesRegex(ProtocolError, "trailers are longer"):
            open_body(200, CHUNKED).feed(b"0\r\n" + b"X: y\r\n" * 20000)

    def test_a_cut_before_the_last_chunk_leaves_the_body_incomplete(self) -> None:
        wire = encode_chunk(EVENT) + LAST_CHUNK
        for at in range(len(wire)):
            _, body = decode(CHUNKED, [wire[:at]])
            body.eof()
            self.assertFalse(body.complete, at)

    def test_what_comes_after_the_body_is_kept_apart(self) -> None:
        got, body = decode(CHUNKED, [b"2\r\nab\r\n0\r\n\r\nHTTP/1.1 ", b"200 OK"])
        self.assertEqual((got, body.complete, body.excess), (b"ab", True, b"HTTP/1.1 200 OK"))

    def test_a_large_event_arrives_as_it_is_read(self) -> None:
        payload = bytes(random.Random(1).randbytes(70_000))
        wire = encode_chunk(payload) + LAST_CHUNK
        body = ChunkedBody()
        got = [body.feed(wire[at : at + 1448]) for at in range(0, len(wire), 1448)]
        self.assertEqual(len(got[0]), 1448 - len(b"11170\r\n"))
        self.assertEqual(b"".join(got), payload)

    def test_random_chunks_in_random_pieces_come_back_whole(self) -> None:
        for seed in range(200):
            rng = random.Random(seed)
            chunks = [rng.randbytes(rng.randint(1, 40)) for _ in range(rng.randint(0, 8))]
            wire = b"".join(map(encode_chunk, chunks)) + LAST_CHUNK
            cuts = sorted(rng.choices(range(len(wire) + 1), k=rng.randint(0, 12)))
            pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
            with self.subTest(seed=seed):
                got, body = decode(CHUNKED, pieces)
                self.assertEqual((got, body.complete), (b"".join(chunks), True))

    def test_no_data_makes_no_chunk_since_an_empty_one_would_end_the_body(self) -> None:
        self.assertEqual(encode_chunk(b""), b"")
        self.assertEqual(encode_chunk(b"x" * 257)[:5], b"101\r\n")


class FramingTest(unittest.TestCase):
    def test_a_length_ends_the_body_with_its_last_byte(self) -> None:
        for pieces in every_split(b"hello"):
            got, body = decode([("content-length", "5")], pieces)
            self.assertEqual((got, body.complete, body.excess), (b"hello", True, b""))
        got, body = decode([("Content-Length", " 3 ")], [b"hel", b"lo"])
        self.assertEqual((got, body.complete, body.excess), (b"hel", True, b"lo"))

    def test_a_body_that_lacks_bytes_is_incomplete(self) -> None:
        _, body = decode([("Content-Length", "6")], [b"hello"])
        body.eof()
        self.assertFalse(body.complete)

    def test_no_length_lasts_until_the_connection_closes(self) -> None:
        got, body = decode([], [b"hel", b"", b"lo"])
        self.assertEqual((got, body.complete), (b"hello", False))
        body.eof()
        self.assertTrue(body.complete)

    def test_some_answers_have_no_body_whatever_they_say(self) -> None:
        for status in (100, 103, 204, 304):
            self.assertTrue(open_body(status, CHUNKED).complete)
        self.assertTrue(open_body(200, [("Content-Length", "5")], method="HEAD").complete)
        self.assertTrue(open_body(200, [("Content-Length", "0")]).complete)

    def test_chunks_win_over_a_length(self) -> None:
        got, body = decode([("Content-Length", "2"), ("transfer-encoding", " Chunked ")], [b"5\r\nhello\r\n0\r\n\r\n"])
        self.assertEqual((got, body.complete), (b"hello", True))

    def test_a_transfer_coding_that_is_none_changes_nothing(self) -> None:
        got, _ = decode([("Transfer-Encoding", "identity"), ("Content-Length", "2")], [b"hello"])
        self.assertEqual(got, b"he")

    def test_a_length_is_one_number_of_decimal_digits(self) -> None:
        for value in ("-1", "+5", "5_0", "0x5", "", "five", "5.0", "9" * 19, "5, 6", "٥"):
            with self.subTest(value=value), self.assertRaises(ProtocolError):
                open_body(200, [("Content-Length", value)])
        with self.assertRaisesRegex(ProtocolError, "content-length is 5 and 6, must be one number"):
            open_body(200, [("Content-Length", "5"), ("Content-Length", "6")])
        self.assertEqual(decode([("Content-Length", "2, 2"), ("CONTENT-LENGTH", "2")], [b"ab"])[0], b"ab")


class CompressedTest(unittest.TestCase):
    def raw(self, data: bytes) -> bytes:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush()

    def test_gzip_and_both_kinds_of_deflate_are_read_at_every_split(self) -> None:
        for coding, packed in (
            ("gzip", gzip.compress(EVENT)),
            ("x-gzip", gzip.compress(EVENT)),
            ("GZIP", gzip.compress(EVENT[:9]) + gzip.compress(EVENT[9:])),
            ("gzip", gzip.compress(EVENT) + b"\0\0"),
            ("deflate", zlib.compress(EVENT)),
            ("deflate", self.raw(EVENT)),
            ("identity", EVENT),
            ("deflate, gzip", gzip.compress(zlib.compress(EVENT))),
        ):
            for pieces in every_split(packed):
                headers = [("Content-Encoding", coding), ("Content-Length", str(len(packed)))]
                got, body = decode(headers, pieces)
                self.assertEqual((got, body.complete), (EVENT, True), coding)

    def test_a_gzipped_event_is_out_as_soon_as_the_server_flushed_it(self) -> None:
        packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        body = open_body(200, [*CHUNKED, ("Content-Encoding", "gzip")])
        for event in (EVENT, b"data: 2\n\n", b"data: [DONE]\n\n"):
            self.assertEqual(body.feed(encode_chunk(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))), event)
        self.assertEqual(body.feed(encode_chunk(packer.flush()) + LAST_CHUNK), b"")
        self.assertTrue(body.complete)

    def test_a_gzipped_transfer_is_read_too(self) -> None:
        got, _ = decode([("Transfer-Encoding", "gzip, chunked")], [encode_chunk(gzip.compress(EVENT)) + LAST_CHUNK])
        self.assertEqual(got, EVENT)

    def test_what_cannot_be_read_is_refused(self) -> None:
        with self.assertRaisesRegex(ProtocolError, "'br' was not asked for"):
            open_body(200, [("Content-Encoding", "br")])
        with self.assertRaisesRegex(ProtocolError, "not what its content-encoding says"):
            open_body(200, [("Content-Encoding", "gzip")]).feed(EVENT)

    def test_memory_is_bounded_for_what_inflates(self) -> None:
        bomb = gzip.compress(bytes(65 * 1024 * 1024), 1)
        with self.assertRaisesRegex(ProtocolError, "inflates to more than"):
            open_body(200, [("Content-Encoding", "gzip")]).feed(bomb)


if __name__ == "__main__":
    unittest.main()
