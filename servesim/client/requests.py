"""From a request's number to the bytes that are sent for it, made before they are due.

A redirect (307, 308) keeps method and body; the user's headers, credentials among them, are dropped when it leads to
another host.

Sessions are as real users have them: each turn sends back what the server really answered to the turns before it, so
that its prefix cache finds the tokens of its own answers. The length of a turn is the whole prompt's, as in the
simulator; its own words fill what the history leaves. What a chat template adds for a turn is learned from the usage
of the turns as they come. A turn whose history would be longer than its whole prompt, or whose predecessor failed,
starts from a text that stands in for the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import InvalidURL
from urllib.parse import urljoin, urlsplit

from servesim.client.connection import Exchange, request_bytes
from servesim.client.flavour import Prompt
from servesim.client.prompts import SyntheticPrompts
from servesim.client.target import Target, ascii_host
from servesim.workload.workload import link_turns

Messages = list[dict[str, str]]


@dataclass(slots=True, frozen=True)
class _Turn:
    """What was sent: the messages, and the tokens they should be beside the template's (None: nothing to learn)."""

    messages: Messages
    known_tokens: float | None


class Conversations:
    """Prompts of requests that are turns of sessions; the caller passes on every answer."""

    def __init__(self, prompts: SyntheticPrompts) -> None:
        _, self._following = link_turns(prompts.requests)
        self._later = {index for index in self._following if index >= 0}
        self._prompts = prompts
        self._history: dict[int, tuple[Messages, int]] = {}  # of a turn: what came before it, and its tokens
        self._sent: dict[int, _Turn] = {}
        self._turn_overhead = 0.0  # tokens that the template adds between two turns

    def waits(self, index: int) -> bool:
        """Return whether request `index` has a turn before it, whose answer its prompt needs."""
        return index in self._later

    def prompt(self, index: int) -> Prompt:
        """Return the prompt of request `index`: a text, or the messages of the conversation up to it."""
        messages, tokens = self._history.get(index, ([], 0))
        rate = self._prompts.rate
        room = self._prompts.requests.prompt_tokens[index] - tokens - self._turn_overhead
        words = round(room / rate.per_word)
        if not messages or words < 1:
            text = str(self._prompts.prompt(index))
            self._sent[index] = _Turn([_said("user", text)], None)
            return text
        own_text = " ".join(self._prompts.own_words(index, words))
        turn = self._sent[index] = _Turn([*messages, _said("user", own_text)], tokens + words * rate.per_word)
        return [dict(message) for message in turn.messages]

    def answered(self, index: int, text: str, prompt_tokens: int | None, output_tokens: int) -> None:
        """Take in the answer to request `index` with the tokens that the server counted; no text is no answer."""
        turn = self._sent.get(index)
        if turn is None or not text:
            return
        del self._sent[index]
        self._history.pop(index, None)
        if prompt_tokens is not None and turn.known_tokens is not None:
            self._turn_overhead = prompt_tokens - turn.known_tokens
        following = self._following[index]
        if following >= 0:
            whole = self._prompts.requests.prompt_tokens[index] if prompt_tokens is None else prompt_tokens
            self._history[following] = ([*turn.messages, _said("assistant", text)], whole + output_tokens)


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


REDIRECTS = (307, 308)  # keep method and body (RFC 9110 sections 15.4.8 and 15.4.9)
MAX_HOPS = 3
AHEAD_REQUESTS, AHEAD_BYTES = 4096, 64 << 20

Payload = Callable[[int], bytes]
"""The JSON body of request `index`."""


class RequestMaker:
    """Makes exchanges, ahead of their time where there is time."""

    def __init__(
        self, target: Target, route: str, payload: Payload, size: int, waits: Callable[[int], bool] | None = None
    ) -> None:
        self._target = target
        self._route = route
        self._payload = payload
        self._size = size
        self._waits = waits  # says of which requests the payload cannot be known ahead
        self._headers = {**target.request_headers(), "Content-Type": "application/json"}
        self._ahead: dict[int, Exchange] = {}
        self._ahead_bytes = 0
        self._next = 0  # the first that was not made ahead

    def make(self, index: int) -> Exchange:
        """Return the exchange for request `index`."""
        exchange = self._ahead.pop(index, None)
        if exchange is None:
            self._next = max(self._next, index + 1)
            return self._make(index)
        self._ahead_bytes -= len(exchange.request)
        return exchange

    def make_ahead(self, until: float) -> bool:
        """Make some of the next requests, until the given monotonic time; return whether there is more to make."""
        while self._next < self._size and len(self._ahead) < AHEAD_REQUESTS and self._ahead_bytes < AHEAD_BYTES:
            index = self._next
            self._next += 1
            if self._waits is not None and self._waits(index):
                continue
            exchange = self._ahead[index] = self._make(index)
            self._ahead_bytes += len(exchange.request)
            if time.monotonic() >= until:
                return True
        return False

    def _make(self, index: int) -> Exchange:
        body, target = self._payload(index), self._target
        request = request_bytes("POST", target.request_target(self._route), target.netloc, self._headers, body)
        return Exchange(index, target, body, request)

    def redirect(self, exchange: Exchange) -> bool:
        """Make an exchange that was answered with a redirect ready to be sent again; False: it is an answer."""
        location = exchange.headers.get("location")
        if exchange.failure is not None or exchange.status not in REDIRECTS or not location:
            return False
        if exchange.hops == MAX_HOPS:
            exchange.failure, exchange.message = "redirect", f"more than {MAX_HOPS} redirects, the last to {location}"
            return False
        here = exchange.target
        try:
            target, path = _redirected(here, self._route if here == self._target else None, location)
            headers = {**target.request_headers(), "Content-Type": "application/json"}
            request = request_bytes("POST", path, target.netloc, headers, exchange.body)
        except (ValueError, InvalidURL):
            exchange.failure, exchange.message = "redirect", f"redirected to {location[:200]!r}, which is no address"
            return False
        exchange.resend(target, request)
        return True


def _redirected(here: Target, route: str | None, location: str) -> tuple[Target, str]:
    """Return the target that `location` means and the request target there. Raises ValueError if it is no address."""
    base = f"{here.scheme}://{here.netloc}{here.path(route) if route is not None else '/'}"
    parts = urlsplit(urljoin(base, location))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(location)
    there = replace(here, scheme=parts.scheme, host=ascii_host(parts.hostname), port=port)
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        upgraded = (here.scheme, here.port, there.scheme, there.port) == ("http", 80, "https", 443)
        if here.host != there.host or not upgraded:
            there = replace(there, headers=())
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxied = there.proxy is not None and not there.tls
    return there, f"{there.scheme}://{there.netloc}{path}" if proxied else path
