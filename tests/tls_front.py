"""TLS in front of a plain server on this machine, for tests; the certificate is made by `openssl`."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

HAVE_OPENSSL = shutil.which("openssl") is not None


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 and its key; return their paths."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return certificate, key


class TlsFront:
    """Listens on `port`, speaks TLS, and passes everything on to `behind`."""

    def __init__(self, behind: int, certificate: Path, key: Path) -> None:
        self._behind = behind
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TlsFront:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as outside,
            socket.create_connection(("127.0.0.1", self._behind)) as inside,
        ):
            back = threading.Thread(target=self._pump, args=(inside, outside), daemon=True)
            back.start()
            self._pump(outside, inside)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
