"""Who may steer: this page, and programs that are no browser; never a page from elsewhere in somebody's browser.

A web page can make a browser send requests to any address. Three things keep it from the controls: its `Origin` is not
ours, `Sec-Fetch-Site` says so too, and a body of JSON may not be sent across origins unasked. A name that an attacker
points at 127.0.0.1 (DNS rebinding) is a `Host` that is neither an address nor the name that we were started with.
"""

from __future__ import annotations

import ipaddress

from servesim.serve.http import HttpRequest

MAX_CONTROL_BYTES = 4096


def refusal(request: HttpRequest, own_host: str) -> tuple[int, str] | None:
    """Return the status and the reason for which a request must not steer, None if it may."""
    host = request.header("host")
    if not _is_ours(host, own_host):
        return 403, f"steering wants an address or the name that the server was started with, not {host[:100]!r}"
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return 403, "steering is for this server's own page"
    if request.header("sec-fetch-site") not in ("", "same-origin", "none"):
        return 403, "steering is for this server's own page"
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        return 415, "the body must be application/json"
    if len(request.body) > MAX_CONTROL_BYTES:
        return 413, f"the body is longer than {MAX_CONTROL_BYTES} bytes"
    return None


def _is_ours(host: str, own_host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("localhost", own_host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
