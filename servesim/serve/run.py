"""From a server and a spec to a loop that serves: the one place where the parts of this room are put together."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass

from servesim.config.build import Server
from servesim.config.serve import ServeSpec
from servesim.errors import InputError
from servesim.serve.app import Dialect, ServeApp
from servesim.serve.llamacpp import LlamaCppApi
from servesim.serve.loop import Loop, listen
from servesim.serve.vllm import VllmApi

APIS: dict[str, Callable[[ServeApp], Dialect]] = {"vllm": VllmApi, "llamacpp": LlamaCppApi}
SPARE_FILES = 32  # open files that are not clients


@dataclass(slots=True, frozen=True)
class Serving:
    """A server that is listening; `loop.run()` serves."""

    app: ServeApp
    loop: Loop
    url: str


def prepare(server: Server, spec: ServeSpec) -> Serving:
    """Open the port and make all that stands behind it. Raises InputError and RunError."""
    key = None
    if spec.api_key_env is not None:
        key = os.environ.get(spec.api_key_env, "").strip()
        if not key:
            raise InputError(f"environment variable {spec.api_key_env!r} for the API key is not set")
    listener = listen(spec.host, spec.port)
    app = ServeApp(server, spec, APIS[spec.dialect], api_key=key)
    loop = Loop(
        app,
        listener,
        max_connections=_files_for(spec.max_connections),
        max_body_bytes=spec.max_body_bytes,
        grace_s=spec.grace_s,
    )
    app.loop = loop
    host, port = listener.getsockname()[:2]
    return Serving(app, loop, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


def _files_for(connections: int) -> int:
    """Return how many connections the limit of open files allows, raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(connections, soft - SPARE_FILES))
    return connections
