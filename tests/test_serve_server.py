"""The server on real sockets: connections, patience, faults, keys, the end."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import time
import unittest
from typing import Any
from unittest import mock

from servesim.client.health import KERNEL_STAMPS
from servesim.errors import RunError
from servesim.serve import connection as connection_module
from servesim.serve.connection import ask_for_stamps, came_at
from servesim.serve.loop import listen
from tests.extent import seeds
from tests.hostile_serve import KINDS, assault
from tests.serve_case import PATIENCE_S, LiveServer, events, eventually

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG = {"prompt": "hello", "max_tokens": 100_000, "ignore_eos": True, "stream": True}


def raw(path: str, body: Any, *extra: str, version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(data)}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        if not piece:
            break
        data += piece
    return data


def read_to_end(sock: socket.socket) -> bytes:
    return read_until(sock, b"\0never\0")


class Connections(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = LiveServer()
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def free_blocks(self) -> int:
        return self.server.app.clock.engine.pool.free

    def test_requests_in_a_row_are_answered_in_a_row(self) -> None:
        with self.server.open() as sock:
            bodies = [{"prompt": "a", "max_tokens": count, "ignore_eos": True} for count in (3, 1, 2)]
            sock.sendall(b"".join(raw(TEXT, body) for body in bodies) + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            data = read_until(sock, b'"version"')
            counts = [int(part.partition(b",")[0]) for part in data.split(b'"completion_tokens":')[1:]]
        self.assertEqual(counts[:3], [3, 1, 2])

    def test_a_request_may_come_in_single_bytes(self) -> None:
        with self.server.open() as sock:
            for byte in raw(TEXT, {"prompt": "a", "max_tokens": 2}):
                sock.sendall(bytes([byte]))
            self.assertIn(b"200 OK", read_until(sock, b'"metrics":null}'))

    def test_a_client_of_http_1_0_is_told_the_end_by_the_close(self) -> None:
        with self.server.open() as sock:
            sock.sendall(raw(TEXT, {"prompt": "a", "max_tokens": 3, "stream": True}, version="1.0"))
            head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertEqual(events(body)[-1], "[DONE]")

    def test_a_client_that_waits_for_a_word_gets_it(self) -> None:
        request = raw(TEXT, {"prompt": "a", "max_tokens": 1}, "Expect: 100-continue")
        head, _, body = request.partition(b"\r\n\r\n")
        with self.server.open() as sock:
            sock.sendall(head + b"\r\n\r\n")
            self.assertEqual(read_until(sock, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
            sock.sendall(body)
            self.assertIn(b"200 OK", read_until(sock, b'"metrics":null}'))

    def test_what_is_not_http_is_told_so_and_the_connection_ends(self) -> None:
        with self.server.open() as sock:
            sock.sendall(b"\x16\x03\x01" + b"x" * 200)
            self.assertTrue(read_to_end(sock).startswith(b"HTTP/1.1 400 "))

    def test_a_body_that_is_too_large_is_refused_before_it_is_read(self) -> None:
        with self.server.open() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 5000)
            self.assertTrue(read_to_end(sock).startswith(b"HTTP/1.1 413 "))

    def test_a_client_that_goes_away_leaves_nothing_behind(self) -> None:
        before = self.free_blocks()
        for way in ("close", "reset", "half"):
            with self.subTest(way):
                sock = self.server.open()
                sock.sendall(raw(TEXT, LONG))
                read_until(sock, b"data: ")
                self.assertLess(self.free_blocks(), before)
                if way == "reset":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                if way == "half":
                    sock.shutdown(socket.SHUT_WR)
                    read_to_end(sock)
                sock.close()
                eventually(self, self.free_blocks, before)
        eventually(self, lambda: self.server.metric("vllm:num_requests_running"), 0.0)

    def test_a_client_that_leaves_before_its_answer_is_whole_leaves_nothing_either(self) -> None:
        before = self.free_blocks()
        sock = self.server.open()
        sock.sendall(raw(TEXT, LONG | {"stream": False, "n": 4}))
        eventually(self, lambda: len(self.server.app.answers), 1)
        sock.close()
        eventually(self, lambda: len(self.server.app.answers), 0)
        eventually(self, self.free_blocks, before)

    def test_a_client_that_takes_nothing_is_given_up(self) -> None:
        before = self.free_blocks()
        with mock.patch.object(connection_module, "MAX_UNSENT_BYTES", 20_000), self.server.open() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(raw(TEXT, LONG | {"n": 8}))
            eventually(self, lambda: len(self.server.app.answers), 1)
            eventually(self, lambda: len(self.server.app.answers), 0)
        eventually(self, self.free_blocks, before)

    def test_patience_with_slow_requests_ends(self) -> None:
        with mock.patch.object(connection_module, "HEAD_TIMEOUT_S", 0.2), self.server.open() as sock:
            sock.sendall(b"GET / HT")
            self.assertTrue(read_to_end(sock).startswith(b"HTTP/1.1 408 "))
        with mock.patch.object(connection_module, "BODY_TIMEOUT_S", 0.2), self.server.open() as sock:
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab")
            self.assertTrue(read_to_end(sock).startswith(b"HTTP/1.1 408 "))
        with mock.patch.object(connection_module, "FIRST_BYTE_TIMEOUT_S", 0.2), self.server.open() as sock:
            self.assertEqual(read_to_end(sock), b"")

    def test_where_it_cannot_listen_the_remedy_is_the_one_that_helps(self) -> None:
        taken = self.server.port
        for host, port, told in (
            ("127.0.0.1", taken, "address already in use; choose another port"),
            ("192.0.2.1", 0, "give an address of this machine"),
        ):
            with self.subTest(host=host), self.assertRaisesRegex(RunError, told):
                listen(host, port)
        unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        told = "not known; give an address of this machine"
        with mock.patch.object(socket, "getaddrinfo", side_effect=unknown), self.assertRaisesRegex(RunError, told):
            listen("nobody.invalid", 0)

    def test_pages_of_other_origins_may_read_answers(self) -> None:
        asked = {"Origin": "http://a", "Access-Control-Request-Method": "POST"}
        status, fields, _ = self.server.ask(
            "OPTIONS", CHAT, headers=asked | {"Access-Control-Request-Headers": "authorization"}
        )
        self.assertEqual((status, fields["access-control-allow-origin"]), (200, "*"))
        self.assertEqual(fields["access-control-allow-headers"], "authorization")
        text = {"prompt": "a", "max_tokens": 1}
        for method, path, body in (
            ("GET", "/version", None),
            ("POST", TEXT, text),
            ("POST", TEXT, text | {"stream": True}),
            ("POST", TEXT, {}),
        ):
            with self.subTest(path=path, body=body):
                fields = self.server.ask(method, path, body, headers={"Origin": "http://a"})[1]
                self.assertEqual((fields["access-control-allow-origin"], fields["vary"]), ("*", "Origin"))

    def test_nothing_is_left_for_the_garbage_collector(self) -> None:
        self.server.post(TEXT, {"prompt": "a", "max_tokens": 1})
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for number in range(20):
                self.server.post(TEXT, {"prompt": "a", "max_tokens": 3, "n": 2})
                self.server.ask("POST", CHAT, {"messages": [{"role": "user", "content": "a"}], "stream": True})
                self.server.ask("POST", CHAT, b"{")
                with self.server.open() as sock:
                    sock.sendall(raw(TEXT, LONG) if number % 2 else b"nonsense nonsense\r\n\r\n")
                    sock.recv(100)
            eventually(self, lambda: len(self.server.app.answers), 0)
            gc.collect()
            ours = [type(left).__name__ for left in gc.garbage if type(left).__module__.startswith("servesim")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        self.assertEqual(ours, [])

    def test_bytes_came_when_the_kernel_had_them_not_when_they_were_read(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.create_connection(listener.getsockname()) as client:
            sock, _ = listener.accept()
            with sock:
                ask_for_stamps(sock)
                for _ in range(200_000 if KERNEL_STAMPS else 1):  # it begins a moment after it was asked
                    client.sendall(b"x")
                    _, ancillary, _, _ = sock.recvmsg(10, 64)
                    if ancillary:
                        break
        self.assertEqual(len(ancillary), int(KERNEL_STAMPS))
        stamp = struct.pack("@ll", 7_000_000, 250_000_000)
        clocks = mock.Mock(monotonic=lambda: 500.0, time=lambda: 7_000_000.75)  # half a second after the stamp
        with mock.patch.object(connection_module, "time", clocks):
            self.assertEqual(came_at([(socket.SOL_SOCKET, 35, stamp)], 500.0), 499.5)
            self.assertEqual(came_at([(socket.SOL_SOCKET, 35, bytes(16))], 500.0), 500.0)
            self.assertEqual(came_at([], 5.0), 5.0)


class Bounds(unittest.TestCase):
    def test_a_full_queue_answers_429_at_once_and_counts_it(self) -> None:
        engine = {"max_num_seqs": 1, "max_num_queued_reqs": 1}
        with LiveServer(engine, speed=1.0) as server:
            held = [server.open() for _ in range(2)]
            for number, sock in enumerate(held):
                sock.sendall(raw(TEXT, LONG))
                eventually(self, lambda number=number: len(server.app.answers), number + 1)
                if not number:
                    read_until(sock, b"data: ")
            status, fields, body = server.ask("POST", TEXT, LONG)
            self.assertEqual((status, json.loads(body)["error"]["code"]), (429, 429))
            self.assertIn("retry-after", fields)
            self.assertEqual(server.metric("vllm:admission_rejections_total"), 1)
            self.assertEqual(server.metric("vllm:num_requests_waiting{"), 1)
            for sock in held:
                sock.close()
            eventually(self, lambda: server.ask("POST", TEXT, {"prompt": "a", "max_tokens": 1})[0], 200)

    def test_idle_connections_make_room_for_new_ones(self) -> None:
        with LiveServer(max_connections=4) as server:
            idle = [server.open() for _ in range(12)]
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            self.assertLessEqual(len(server.loop._connections), 4)
            for sock in idle:
                sock.close()

    def test_busy_connections_keep_new_ones_waiting(self) -> None:
        with LiveServer(max_connections=2, speed=1.0) as server:
            busy = [server.open() for _ in range(2)]
            for sock in busy:
                sock.sendall(raw(TEXT, LONG))
                read_until(sock, b"data: ")
            with server.open() as late:
                late.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                late.settimeout(0.2)
                with self.assertRaises(TimeoutError):
                    late.recv(1)
                busy.pop().close()
                late.settimeout(PATIENCE_S)
                self.assertIn(b"200 OK", read_until(late, b"\r\n\r\n"))
            busy.pop().close()


class Keys(unittest.TestCase):
    def test_the_api_wants_the_key_and_the_rest_does_not(self) -> None:
        with (
            mock.patch.dict(os.environ, {"SERVE_TEST_KEY": "secret"}),
            LiveServer(api_key_env="SERVE_TEST_KEY") as server,
        ):
            for headers, status in (
                ({}, 401),
                ({"Authorization": "Bearer wrong"}, 401),
                ({"Authorization": "Basic secret"}, 401),
                ({"Authorization": "Bearer s\xe9cret"}, 401),
                ({"Authorization": "Bearer secret"}, 200),
            ):
                got, _, body = server.ask("GET", "/v1/models", headers=headers)
                self.assertEqual(got, status)
                if status == 401:
                    self.assertEqual(json.loads(body), {"error": "Unauthorized"})
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            self.assertEqual(server.ask("GET", "/metrics")[0], 200)


class Faults(unittest.TestCase):
    def test_requests_fail_as_often_as_asked_and_the_same_ones_again(self) -> None:
        outcomes = []
        for _ in range(2):
            with LiveServer(fail_rate=0.5) as server:
                outcomes.append([server.ask("POST", TEXT, {"prompt": "a", "max_tokens": 1})[0] for _ in range(24)])
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertEqual({*outcomes[0]}, {200, 500})

    def test_streams_are_cut_and_their_blocks_are_free(self) -> None:
        with LiveServer(cut_streams=1.0) as server, server.open() as sock:
            sock.sendall(raw(TEXT, LONG | {"max_tokens": 40}))
            data = read_to_end(sock)
            self.assertIn(b"200 OK", data)
            self.assertNotIn(b"[DONE]", data)
            clock = server.app.clock
            eventually(self, lambda: clock.engine.pool.free, clock.config.num_blocks)
            self.assertEqual(server.metric('servesim:faults_total{kind="cut"}'), 1)

    def test_streams_stall_and_go_on(self) -> None:
        with LiveServer(stall=1.0, stall_for_s=0.3) as server:
            start = time.monotonic()
            body = server.ask("POST", TEXT, LONG | {"max_tokens": 40})[2]
            self.assertGreater(time.monotonic() - start, 0.3)
            self.assertEqual(len(events(body)), 41)
            start = time.monotonic()
            whole = server.post(TEXT, LONG | {"max_tokens": 40, "stream": False})
            self.assertGreater(time.monotonic() - start, 0.3)
            self.assertEqual(whole["usage"]["completion_tokens"], 40)


class Hostile(unittest.TestCase):
    """A small assault on every run; the large one is `python3 -m tests.hostile_serve`."""

    def test_hostile_clients_leave_it_serving_with_every_block_free(self) -> None:
        with LiveServer({"prefix_caching": True, "async_scheduling": True}, speed=5.0) as server:
            counts = assault(server.port, len(seeds(1200)), seed=3)
            self.assertEqual({*counts}, {kind.__name__ for kind in KINDS})
            clock = server.app.clock
            eventually(self, lambda: clock.engine.pool.free, clock.config.num_blocks)
            eventually(self, lambda: (clock.idle, len(server.app.answers)), (True, 0))
            self.assertEqual(clock.workload.free_rows, len(clock._at))
            answer = server.post(TEXT, {"prompt": "still there?", "max_tokens": 3})
            self.assertEqual(answer["usage"]["completion_tokens"], 3)


class TheEnd(unittest.TestCase):
    def test_what_is_under_way_is_finished_and_nothing_new_is_begun(self) -> None:
        server = LiveServer(speed=5.0, grace_s=PATIENCE_S)
        with server:
            with server.open() as sock, server.open() as idle:
                sock.sendall(raw(TEXT, LONG | {"max_tokens": 200}))
                read_until(sock, b"data: ")
                server.loop.stop()
                rest = read_to_end(sock)
                self.assertIn(b"[DONE]", rest)
                self.assertEqual(read_to_end(idle), b"")
            with self.assertRaises(OSError):
                server.open(0.5)
        self.assertEqual(server.loop.cut_off, 0)

    def test_grace_ends(self) -> None:
        server = LiveServer(speed=1.0, grace_s=0.2)
        with server, server.open() as sock:
            sock.sendall(raw(TEXT, LONG))
            read_until(sock, b"data: ")
            server.loop.stop()
            self.assertNotIn(b"[DONE]", read_to_end(sock))
        self.assertEqual(server.loop.cut_off, 1)
        clock = server.app.clock
        self.assertEqual(clock.engine.pool.free, clock.config.num_blocks)


if __name__ == "__main__":
    unittest.main()
