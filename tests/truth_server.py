"""A server that does exactly what a script says and writes down when it really did it.

Every answer is a list of `Step`s: bytes to write after a pause, or something worse (a reset, a half close). The pauses
form a schedule that starts when the kernel had the request (SO_TIMESTAMPNS on Linux), so that the server's own lateness
shows in its record and does not add up. The record is in `time.monotonic()`, which a client on the same machine shares.

`VirtualServer` and the client of its block run on one virtual clock, so that a schedule is kept to the microsecond
however busy the machine is: for tests of what a client makes of times. `TruthServer` runs in a thread, on real sockets:
for tests of connections. `TruthProcess` runs in a process of its own: for the benchmark of the client's clock.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import multiprocessing
import selectors
import socket
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

from servesim.client.run import LoadGenerator

LINUX = sys.platform.startswith("linux")
SO_TIMESTAMPNS = 35
HEAD_OF_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
RESET, CLOSE, HALF_CLOSE, KEEP_SILENT = "reset", "close", "half close", "keep silent"


@dataclass(slots=True)
class Step:
    """Write `data`, or do `act`, `after_s` seconds after the step before. `token`: its time goes into the record."""

    after_s: float
    data: bytes = b""
    act: str = ""
    token: bool = False


@dataclass(slots=True)
class Asked:
    """One request as the server saw it."""

    number: int
    connection: int
    line: str
    headers: dict[str, str]
    body: bytes
    kernel_s: float  # when the kernel had its last byte
    token_s: array = field(default_factory=lambda: array("d"))

    def json(self) -> dict:
        return json.loads(self.body)


Script = Callable[[Asked], Sequence[Step]]


def content(text: str) -> bytes:
    """T(x): a chat chunk whose delta has content x, as JSON."""
    delta = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return json.dumps(delta, ensure_ascii=False).encode()


def event(data: bytes) -> bytes:
    """E(j): one event."""
    return b"data: " + data + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ROLE = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}).encode()
FINISH = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def usage(output: int, prompt: int = 5) -> bytes:
    """U: a chunk with `choices: []` and usage."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return json.dumps({"choices": [], "usage": counts}).encode()


def token_stream(tokens: int, *, ttft_s: float, gap_s: float, together: int = 1) -> list[Step]:
    """Return a chat answer of `tokens` events on a schedule, `together` of them in one write."""
    steps = [Step(0.0, HEAD_OF_STREAM + chunk(event(ROLE)))]
    one = chunk(event(content("a")))
    for first in range(0, tokens, together):
        count = min(together, tokens - first)
        steps.append(Step(gap_s * together if first else ttft_s, one * count, token=True))
    steps.append(Step(0.0, chunk(event(FINISH) + event(usage(tokens)) + DONE) + LAST_CHUNK))
    return steps


def answer(status: str, body: bytes, *headers: str) -> bytes:
    """Return a whole response with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Peer:
    """A connection: bytes not yet understood, and the script that is being played to it."""

    __slots__ = ("asked", "buffer", "due_s", "kernel_s", "next", "number", "sock", "steps", "unsent")

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self.buffer = b""
        self.kernel_s = 0.0
        self.steps: Sequence[Step] = ()
        self.next = 0
        self.due_s = 0.0
        self.asked: Asked | None = None
        self.unsent = b""


class Server:
    """All connections and a heap of what is due; who has the sockets and the clock calls it."""

    def __init__(
        self, script: Script, *, idle_close_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._script = script
        self._idle_close_s = idle_close_s
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, _Peer]] = []
        self._counter = 0
        self._peers: dict[_Peer, float] = {}  # -> idle since, or inf
        self._offset_s = min(time.time() - time.monotonic() for _ in range(5))
        self.asked: list[Asked] = []
        self.connections = 0

    @property
    def due_s(self) -> float:
        """Return when the next thing is to be done; inf: when something is asked."""
        due_s = self._due[0][0] if self._due else math.inf
        if self._idle_close_s == math.inf:
            return due_s
        return min(due_s, min(self._peers.values(), default=math.inf) + self._idle_close_s)

    def play(self) -> None:
        """Do all that is due."""
        while self._due and self._due[0][0] <= self._clock():
            self._play(heapq.heappop(self._due)[2])
        if self._idle_close_s < math.inf:
            for peer, since in list(self._peers.items()):
                if since + self._idle_close_s <= self._clock():
                    self._close(peer)

    def take(self, sock: socket.socket) -> None:
        """Take a new connection."""
        sock.setblocking(False)
        peer = _Peer(sock, self.connections)
        self.connections += 1
        self._peers[peer] = math.inf
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def hear_all(self) -> None:
        """Read what has come on any connection."""
        for key, _ in self._selector.select(0):
            self._hear(key.data)

    def close_all(self) -> None:
        """Close every connection."""
        for peer in list(self._peers):
            self._close(peer)
        self._selector.close()

    def _hear(self, peer: _Peer) -> None:
        try:
            if LINUX and self._clock is time.monotonic:
                data, ancillary, _, _ = peer.sock.recvmsg(1 << 18, 64)
                peer.kernel_s = self._clock()
                for _, kind, stamp in ancillary:
                    if kind == SO_TIMESTAMPNS:
                        seconds, nanoseconds = struct.unpack("@ll", stamp)
                        peer.kernel_s = seconds + nanoseconds * 1e-9 - self._offset_s
            else:
                data = peer.sock.recv(1 << 18)
                peer.kernel_s = self._clock()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(peer)
            return
        peer.buffer += data
        self._understand(peer)

    def _understand(self, peer: _Peer) -> None:
        head, blank, rest = peer.buffer.partition(b"\r\n\r\n")
        if not blank or peer.asked is not None:
            return
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in fields)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        peer.buffer = rest[length:]
        asked = Asked(len(self.asked), peer.number, line, headers, rest[:length], peer.kernel_s)
        self.asked.append(asked)
        peer.asked, peer.steps, peer.next = asked, self._script(asked), 0
        peer.due_s = asked.kernel_s
        self._peers[peer] = math.inf
        self._schedule(peer)

    def _schedule(self, peer: _Peer) -> None:
        if peer.next < len(peer.steps):
            peer.due_s += peer.steps[peer.next].after_s
            self._counter += 1
            heapq.heappush(self._due, (peer.due_s, self._counter, peer))
        else:
            peer.asked = None
            self._peers[peer] = self._clock()
            self._understand(peer)

    def _play(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        step = peer.steps[peer.next]
        if step.act:
            self._misbehave(peer, step.act)
            return
        try:
            if peer.unsent:
                peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
            else:
                if step.token:
                    peer.asked.token_s.append(self._clock())
                sent = peer.sock.send(step.data)
                if sent < len(step.data):
                    peer.unsent = step.data[sent:]
        except BlockingIOError:
            peer.unsent = peer.unsent or step.data
        except OSError:
            self._close(peer)
            return
        if peer.unsent:
            self._counter += 1
            heapq.heappush(self._due, (self._clock() + 0.001, self._counter, peer))
            return
        peer.next += 1
        self._schedule(peer)

    def _misbehave(self, peer: _Peer, act: str) -> None:
        if act == RESET:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._close(peer)
        elif act == CLOSE:
            self._close(peer)
        elif act == HALF_CLOSE:
            peer.sock.shutdown(socket.SHUT_WR)
        else:
            assert act == KEEP_SILENT

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer]
        self._selector.unregister(peer.sock)
        peer.sock.close()


class SocketServer(Server):
    """The same on real sockets and the real clock."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", idle_close_s: float = math.inf) -> None:
        super().__init__(script, idle_close_s=idle_close_s)
        self._listener = socket.create_server(
            (host, 0), backlog=1024, family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.port: int = self._listener.getsockname()[1]

    def serve(self, stop: Callable[[], bool]) -> None:
        while not stop():
            self.play()
            wait_s = min(0.01, self.due_s - time.monotonic())
            if wait_s >= 0.001:
                ready = self._selector.select(math.floor(wait_s * 1000) / 1000)
            else:
                ready = self._selector.select(0)
                if not ready and wait_s > 0.0:
                    time.sleep(wait_s)
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)
        self.close_all()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if LINUX:
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                self.take(sock)


TURN_S = 1e-6
"""What a client's look at its sockets costs on the virtual clock, so that one who polls comes to an end."""


class VirtualServer:
    """A `Server` on a virtual clock for a `with` block. A `LoadGenerator` that is made and run inside the block reads
    the same clock, which moves only while nobody has anything to do, and its connections are pairs of sockets.

    `at(after_s, call)` does something later: what a person at the keyboard would do.
    """

    url = "http://virtual.invalid"

    def __init__(self, script: Script, **options: object) -> None:
        self.now = 1000.0
        self._server = Server(script, clock=lambda: self.now, **options)  # type: ignore[arg-type]
        self._calls: list[tuple[float, Callable[[], object]]] = []
        self._patches = contextlib.ExitStack()

    @property
    def asked(self) -> list[Asked]:
        return self._server.asked

    @property
    def connections(self) -> int:
        return self._server.connections

    def at(self, after_s: float, call: Callable[[], object]) -> None:
        """Call `call` in `after_s` seconds of the virtual clock."""
        self._calls.append((self.now + after_s, call))

    def select(self, poll: Callable[[], list], timeout_s: float | None) -> list:
        """Let time pass until `poll` finds a socket ready or the timeout is over."""
        self.now += TURN_S
        until_s = math.inf if timeout_s is None else self.now + timeout_s
        while True:
            for call in [call for at_s, call in self._calls if at_s <= self.now]:
                call()
            self._calls = [each for each in self._calls if each[0] > self.now]
            self._server.hear_all()
            self._server.play()
            ready = poll()
            if ready or self.now >= until_s:
                return ready
            due_s = min(self._server.due_s, until_s, *(at_s for at_s, _ in self._calls))
            if due_s == math.inf:
                raise AssertionError("nothing is ready, and nothing will ever be")
            self.now = max(self.now, due_s)

    def __enter__(self) -> VirtualServer:
        server = self

        class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
            def select(self, timeout: float | None = None) -> list:
                return server.select(lambda: super(Selector, self).select(0), timeout)

        def open_socket(*_: object) -> socket.socket:
            ours, theirs = socket.socketpair()
            server._server.take(theirs)
            ours.setblocking(False)
            return ours

        def clock() -> float:
            return server.now

        times = SimpleNamespace(monotonic=clock, time=clock, process_time=time.process_time)
        for name, replaced in {
            "loop.monotonic": clock,
            "run.monotonic": clock,
            "reading.time": times,
            "requests.time": times,
            "health.time": times,
            "loop.selectors": SimpleNamespace(DefaultSelector=Selector),
            "pool.open_socket": open_socket,
            "pool.threading": SimpleNamespace(Lock=threading.Lock, Thread=_AtOnce),
        }.items():
            self._patches.enter_context(mock.patch(f"servesim.client.{name}", replaced))
        self._patches.enter_context(mock.patch.dict(LoadGenerator.measure.__kwdefaults__, start=clock))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()
        self._server.close_all()


class _AtOnce:
    """What a connector thread does, done at once."""

    def __init__(self, *, target: Callable[[], None], **_: object) -> None:
        self.start = target


class TruthServer:
    """A `Server` in a thread, for a `with` block: `port`, `url` and `asked` are what tests look at."""

    def __init__(self, script: Script, **options: object) -> None:
        self._server = SocketServer(script, **options)  # type: ignore[arg-type]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._server.serve, args=(self._stopped.is_set,), daemon=True)
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[Asked]:
        return self._server.asked

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def open_connections(self) -> int:
        return len(self._server._peers)

    def __enter__(self) -> TruthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(60.0)


class TruthProcess:
    """A `Server` in a process of its own, for tests of time. `stop` returns what it saw and did."""

    def __init__(self, script: Script) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_process, args=(script, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._pipe.recv()
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> list[Asked]:
        self._pipe.send(None)
        asked: list[Asked] = self._pipe.recv()
        self._process.join(60.0)
        return asked

    def __enter__(self) -> TruthProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve_process(script: Script, pipe: multiprocessing.connection.Connection) -> None:
    import gc

    gc.freeze()
    gc.disable()
    server = SocketServer(script)
    pipe.send(server.port)
    server.serve(pipe.poll)
    pipe.send(server.asked)
