"""The server that is measured: its address as people write it, the headers it wants, the way to it.

Knows how to open one connection (`connect`) and how a route becomes a request path; it does not know what is sent.
A secret (the API key, the value of a header) is held only here, and neither printed nor saved.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import ssl
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from servesim.config.loadgen import LoadSpec
from servesim.console import reason
from servesim.errors import InputError

API_ROUTES = ("/chat/completions", "/completions", "/responses")  # under the version segment, usually /v1
NATIVE_ROUTES = ("/completion", "/api/chat", "/generate_stream", "/generate")  # under the server's root
VERSION_SEGMENT = re.compile(r"/v\d+[a-z0-9]*$")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FRAMING_HEADERS = ("connection", "content-length", "host", "transfer-encoding")  # the client's own business
RECEIVE_BUFFER_BYTES = 4 << 20


@dataclass(slots=True, frozen=True, kw_only=True)
class Proxy:
    """An HTTP proxy that was asked for: a tunnel for HTTPS, absolute request targets for plain HTTP."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


@dataclass(slots=True, frozen=True, kw_only=True)
class Target:
    """Where requests go. `root` carries `/metrics` and the native APIs, `api_root` what OpenAI puts under `/v1`.

    >>> parse_target("http://[::1]:18081/x/v1/").path("/v1/chat/completions")
    '/x/v1/chat/completions'
    """

    scheme: str
    host: str  # without brackets
    port: int
    root: str = ""  # path in front of /metrics, /health, /completion
    api_root: str = "/v1"  # path in front of /chat/completions, /models
    query: str = field(default="", repr=False)  # kept on every request; may hold a key, so never shown
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    proxy: Proxy | None = None
    insecure: bool = False  # accept any certificate
    ca_file: str | None = None

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def netloc(self) -> str:
        """Return `host:port` as in a URL and the Host header: IPv6 in brackets, a default port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the base URL as it may be shown and saved: nothing secret is in it."""
        return f"{self.scheme}://{self.netloc}{self.root}"

    @property
    def hop(self) -> tuple[str, int]:
        """Return the host and the port that connections are opened to: the server's, or the proxy's."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    @property
    def refused(self) -> str:
        """Return what to say when nobody listens there."""
        if self.proxy is None:
            return f"cannot connect to {self.url}: connection refused; is the server running?"
        return f"cannot connect to the proxy {self.proxy.host}:{self.proxy.port}: connection refused; is it running?"

    def path(self, route: str) -> str:
        """Return the path of a route: `/v1/...` lies under `api_root`, everything else under `root`."""
        path = self.api_root + route[len("/v1") :] if route.startswith("/v1/") else self.root + route
        return f"{path}?{self.query}" if self.query else path

    def request_target(self, route: str) -> str:
        """Return what stands in the request line: the path, or the whole URL for a proxy of plain HTTP."""
        if self.proxy is not None and not self.tls:
            return f"{self.scheme}://{self.netloc}{self.path(route)}"
        return self.path(route)

    def request_headers(self) -> dict[str, str]:
        """Return the headers of every request, `/v1/models` and `/metrics` included. They may be secret."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "servesim", **dict(self.headers)}
        if self.proxy is not None and self.proxy.authorization and not self.tls:
            headers["Proxy-Authorization"] = self.proxy.authorization
        return headers

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Make a connection that is not open yet; its `connect()` does DNS, TCP, proxy tunnel and TLS.

        No proxy is used that was not asked for, whatever the environment says.
        """
        host, port = self.hop
        if not self.tls:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.tls_context())
        if self.proxy is not None:
            secret = {"Proxy-Authorization": self.proxy.authorization} if self.proxy.authorization else {}
            connection.set_tunnel(self.host, self.port, headers=secret)
        return connection

    def tls_context(self) -> ssl.SSLContext:
        """Make the TLS settings: the system's authorities, or `ca_file`, or none at all under `insecure`."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except ssl.SSLError as error:
            raise InputError(f"{self.ca_file}: holds no certificate: {(error.reason or str(error)).lower()}") from None
        except OSError as error:
            raise InputError(f"cannot read {self.ca_file}: {reason(error)}") from None
        context.set_alpn_protocols(["http/1.1"])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_target(
    url: str,
    *,
    headers: Sequence[str] = (),
    api_key_env: str | None = None,
    proxy: str | None = None,
    insecure: bool = False,
    ca_file: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """Read a base URL with or without a path, trailing slash, `/v1` or a whole route, and what goes with it.

    `headers` are `Name: value` texts. `api_key_env` names the environment variable that holds the key. `proxy` is
    a URL, or `env` to follow the environment's `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`.
    Raises InputError; its text never holds a secret.
    """
    environ = os.environ if environ is None else environ
    scheme, host, port, path, query = _split(url)
    root, api_root = _roots(path)
    pairs = [parse_header(header) for header in headers]
    if api_key_env is not None:
        key = environ.get(api_key_env, "").strip()
        if not key:
            raise InputError(f"environment variable {api_key_env!r} for the API key is not set")
        pairs = [pair for pair in pairs if pair[0].lower() != "authorization"]
        pairs.append(("Authorization", _visible_ascii(f"Bearer {key}", f"the API key in {api_key_env}")))
    target = Target(
        scheme=scheme,
        host=host,
        port=port,
        root=root,
        api_root=api_root,
        query=query,
        headers=tuple(pairs),
        proxy=None if proxy is None else _proxy(proxy, scheme, host, environ),
        insecure=insecure,
        ca_file=ca_file,
    )
    if target.tls:
        target.tls_context()  # an unreadable CA file is bad input, not a failed connection
    return target


def target_of(load: LoadSpec, environ: Mapping[str, str] | None = None) -> Target:
    """Return the address of the server that is measured, with its secrets, read from the environment now."""
    return parse_target(
        load.url,
        headers=load.headers,
        api_key_env=load.api_key_env,
        proxy=load.proxy,
        insecure=load.insecure,
        ca_file=load.ca_file,
        environ=environ,
    )


def parse_header(text: str) -> tuple[str, str]:
    """Split `Name: value`.

    >>> parse_header("X-Team:  search ")
    ('X-Team', 'search')
    """
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon or not HEADER_NAME.fullmatch(name):
        raise InputError("a header must read 'Name: value'")
    if name.lower() in FRAMING_HEADERS:
        raise InputError(f"header {name!r} is set by the client itself")
    return name, _visible_ascii(value.strip(), f"header {name!r}")


def _visible_ascii(value: str, what: str) -> str:
    if not all(character == "\t" or " " <= character <= "~" for character in value):
        raise InputError(f"{what} holds a character that cannot stand in a header")
    return value


def _split(url: str) -> tuple[str, str, int, str, str]:
    """Take a URL apart. A bare `host:port` is plain HTTP. An IPv6 address needs its brackets only with a port."""
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    if "@" in text.split("://", 1)[1].split("/", 1)[0]:
        raise InputError("a URL must not hold credentials; use --api-key-env or --header")
    scheme, rest = text.split("://", 1)
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if authority.count(":") > 1 and not authority.startswith("["):
        raise InputError(f"url {url!r}: an IPv6 address needs brackets, as in http://[::1]:8000")
    try:
        parts = urlsplit(text)
        host, port = ascii_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise InputError(f"url {url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise InputError(f"url {url!r} must begin with http:// or https://")
    if re.search(r"[\s\x00-\x1f]", text):
        raise InputError(f"url {url!r} holds a blank")
    if not host:
        raise InputError(f"url {url!r} names no host")
    if port == 0:
        raise InputError(f"url {url!r}: nobody listens on port 0")
    path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    return scheme.lower(), host, port or (443 if parts.scheme == "https" else 80), path, query


def ascii_host(host: str) -> str:
    """Return a host's name as the resolver and the Host header have it. Raises ValueError for what can be no name."""
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError("a part of the host's name is empty or too long") from None


def _roots(path: str) -> tuple[str, str]:
    """Return (root, api_root) of a base path; a known route and a version segment at its end are not in the root."""
    path = re.sub(r"/+", "/", path).rstrip("/")
    for route in API_ROUTES:
        if path.endswith(route):
            api_root = path[: -len(route)]
            return VERSION_SEGMENT.sub("", api_root), api_root
    for route in NATIVE_ROUTES:
        if path.endswith(route):
            path = path[: -len(route)]
            return path, f"{path}/v1"
    if VERSION_SEGMENT.search(path):
        return VERSION_SEGMENT.sub("", path), path
    return path, f"{path}/v1"


def _proxy(proxy: str, scheme: str, host: str, environ: Mapping[str, str]) -> Proxy | None:
    if proxy == "env":
        proxy = _proxy_from_environment(scheme, host, environ)
        if not proxy:
            return None
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        name, port = ascii_host(parts.hostname or ""), parts.port or 80
    except ValueError:
        raise InputError("the proxy's address is not a URL, or its port is not a number") from None
    if parts.scheme != "http" or not name:
        raise InputError("a proxy must be an http:// URL")
    secret = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(host=name, port=port, authorization=secret)


def _proxy_from_environment(scheme: str, host: str, environ: Mapping[str, str]) -> str:
    for name in (f"{scheme}_proxy", "all_proxy"):
        url = environ.get(name) or environ.get(name.upper()) or ""
        if url:
            break
    spared = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for entry in (part.strip().lstrip(".").lower() for part in spared.split(",")):
        if entry and (entry == "*" or host == entry or host.endswith("." + entry)):
            return ""
    return url
