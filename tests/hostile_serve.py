"""Thousands of hostile clients against `serve`: what they do, and whether the server is the same afterwards.

`python3 -m tests.hostile_serve [--clients 10000] [--seed 1]` starts a server in a process of its own, sends the clients
and prints what is left: blocks in use, connections, memory before and after, and how late its steps were.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable

LEFT_OPEN = 150  # connections that are opened and forgotten, at any one time


def post(path: str, body: object, *fields: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def stream_of(draw: random.Random) -> bytes:
    body = {"prompt": "hostile " * draw.randint(1, 300), "max_tokens": draw.randint(1, 5000), "ignore_eos": True}
    return post("/v1/completions", body | {"stream": draw.random() < 0.8, "n": draw.choice((1, 1, 1, 4))})


def fuzzed(sock: socket.socket, draw: random.Random) -> None:
    data = bytearray(
        draw.choice((stream_of(draw), post("/v1/chat/completions", {"messages": []}), b"GET /metrics HTTP/1.1\r\n\r\n"))
    )
    for _ in range(draw.randint(1, 12)):
        place = draw.randrange(len(data))
        data[place : place + draw.randint(0, 5)] = draw.randbytes(draw.randint(0, 6))
    sock.sendall(data)
    peek(sock, draw)


def noise(sock: socket.socket, draw: random.Random) -> None:
    sock.sendall(draw.randbytes(draw.randint(1, 3000)))
    peek(sock, draw)


def slow_loris(sock: socket.socket, draw: random.Random) -> None:
    data = stream_of(draw)
    sock.sendall(data[: draw.randint(0, len(data) - 1)])


def huge_head(sock: socket.socket, draw: random.Random) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"y" * draw.choice((70_000, 200_000)) + b"\r\n\r\n")
    peek(sock, draw)


def many_heads(sock: socket.socket, draw: random.Random) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * draw.randint(100, 3000) + b"\r\n")
    peek(sock, draw)


def half_open(sock: socket.socket, draw: random.Random) -> None:
    sock.sendall(stream_of(draw))
    sock.shutdown(socket.SHUT_WR)
    peek(sock, draw)


def pipelined(sock: socket.socket, draw: random.Random) -> None:
    one = draw.choice(
        (b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", post("/tokenize", {"prompt": "x"}), stream_of(draw))
    )
    sock.sendall(one * draw.randint(2, 60))
    peek(sock, draw)


def cancelled(sock: socket.socket, draw: random.Random) -> None:
    sock.sendall(stream_of(draw))
    for _ in range(draw.randint(0, 4)):
        peek(sock, draw)
    if draw.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def bad_json(sock: socket.socket, draw: random.Random) -> None:
    bodies = (b"[" * 50_000, b'{"prompt":' * 500, b'{"a":1', b'{"prompt":[' + b"9," * 2000 + b"99999999999999999999]}")
    sock.sendall(post(draw.choice(("/v1/completions", "/v1/chat/completions", "/tokenize")), draw.choice(bodies)))
    peek(sock, draw)


def false_length(sock: socket.socket, draw: random.Random) -> None:
    length = draw.choice((b"99999999999", b"-5", b"1e3", b"5, 6", b"\xb2"))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\nxxxxx")
    peek(sock, draw)


def bad_chunks(sock: socket.socket, draw: random.Random) -> None:
    chunks = draw.choice(
        (
            b"zz\r\n",
            b"ffffffffffffffffff\r\n",
            b"5\r\nabcdefgh\r\n",
            b"1;" + b"x" * 9000,
            b"0\r\n" + b"t: x\r\n" * 20000,
        )
    )
    sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    peek(sock, draw)


def deaf(sock: socket.socket, draw: random.Random) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.sendall(stream_of(draw))


def peek(sock: socket.socket, draw: random.Random) -> None:
    """Read a little, if something comes at once."""
    sock.settimeout(draw.choice((0.0005, 0.002)))
    try:
        sock.recv(draw.choice((1, 4096)))
    except OSError:
        pass
    sock.settimeout(60.0)


KINDS: tuple[Callable[[socket.socket, random.Random], None], ...] = (
    fuzzed,
    noise,
    slow_loris,
    huge_head,
    many_heads,
    half_open,
    pipelined,
    cancelled,
    cancelled,
    bad_json,
    false_length,
    bad_chunks,
    deaf,
)


def assault(port: int, clients: int, seed: int) -> Counter[str]:
    """Send `clients` hostile clients, some of which stay; return how many of each kind there were."""
    draw = random.Random(seed)
    left_open: deque[socket.socket] = deque()
    counts: Counter[str] = Counter()
    for _ in range(clients):
        kind = draw.choice(KINDS)
        counts[kind.__name__] += 1
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=60.0)
        except OSError:
            counts["not let in"] += 1
            continue
        try:
            kind(sock, draw)
        except OSError:
            pass  # the server had enough of it
        if kind in (slow_loris, deaf) or draw.random() < 0.05:
            left_open.append(sock)
            if len(left_open) > LEFT_OPEN:
                left_open.popleft().close()
        else:
            sock.close()
    for sock in left_open:
        sock.close()
    return counts


def metrics(port: int) -> dict[str, float]:
    """Return the figures of the page that matter here."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    found = {}
    for line in connection.getresponse().read().decode().splitlines():
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        if name in (
            "servesim:free_blocks",
            "servesim:num_blocks",
            "process_resident_memory_bytes",
            "servesim:steps_total",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "servesim:connections",
            "process_open_fds",
        ):
            found[name.rpartition(":")[2]] = float(value)
        if line.startswith('servesim:step_lateness_seconds_bucket{le="0.005"}'):
            found["steps_within_5ms"] = float(value)
    connection.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    command = [sys.executable, "-m", "servesim", "serve", "--port", "0", "--prefix-caching", "--max-model-len", "8192"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        assault(port, min(1000, asked.clients // 2), asked.seed + 1)  # caches fill, pools grow
        time.sleep(1.5)
        before = metrics(port)
        start = time.monotonic()
        counts = assault(port, asked.clients, asked.seed)
        took_s = time.monotonic() - start
        time.sleep(1.5)
        after = metrics(port)
        server.terminate()
        code = server.wait(40)
    print(f"{asked.clients:,} clients in {took_s:.1f} s: {dict(counts)}")
    for name, value in after.items():
        print(f"{name:<24} {before.get(name, 0):>16,.0f} -> {value:>16,.0f}")
    print(f"exit code {code}")
    whole = (
        after["free_blocks"] == after["num_blocks"]
        and not after["num_requests_running"] + after["num_requests_waiting"]
    )
    return int(not whole or bool(code))


if __name__ == "__main__":
    raise SystemExit(main())
