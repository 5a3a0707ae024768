"""Proxies for requests to the API server, by the rules of Go's net/http, as in kubectl."""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from .errors import ApiError

_SCHEMES = ("http", "https", "socks5", "socks5h")
_PORTS = {"http": 80, "https": 443}


def checked_proxy(url: str, where: str) -> str:
    """Return `url` if it is the URL of a supported proxy. Otherwise raise ApiError, which names `where`."""
    scheme, host = urlsplit(url)[:2]
    if scheme not in _SCHEMES or not host:
        raise ApiError(f"{where} is {url!r}; expected a URL with one of the schemes {', '.join(_SCHEMES)} and a host")
    return url


def proxy_of_environment(server: str, env: Mapping[str, str]) -> str:
    """Return the proxy for `server` from HTTPS_PROXY or HTTP_PROXY; empty if none, or if NO_PROXY
    excludes the server.
    """
    parts = urlsplit(server)
    name = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = env.get(name) or env.get(name.lower()) or ""
    host = (parts.hostname or "").rstrip(".")
    exceptions = env.get("NO_PROXY") or env.get("no_proxy") or ""
    if not proxy or host == "localhost" or _is_excepted(host, parts.port or _PORTS[parts.scheme], exceptions):
        return ""
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", name)


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    """Return whether the value of NO_PROXY (`exceptions`) excludes the host and port.

    Entries are `*`, an address, a range or a domain, each with or without a port. Loopback addresses are always
    excluded.
    """
    address = None
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
    if address is not None and address.is_loopback:
        return True
    for word in (one.strip().lower() for one in exceptions.split(",")):
        if word == "*":
            return True
        if "/" in word and address is not None:
            with suppress(ValueError):
                if address in ipaddress.ip_network(word, strict=False):
                    return True
        name, wanted = _host_and_port(word)
        if name and wanted in (None, port) and _matches(host, address, name):
            return True
    return False


def _host_and_port(word: str) -> tuple[str, int | None]:
    name, colon, port = word.rpartition(":")
    if not colon or not port.isdecimal() or (":" in name and not name.endswith("]")):
        return word.strip("[]"), None
    return name.strip("[]"), int(port)


def _matches(host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, name: str) -> bool:
    if address is not None:
        with suppress(ValueError):
            return address == ipaddress.ip_address(name)
        return False
    domain = name.removeprefix("*")
    # A domain without a leading dot also matches itself.
    return host.endswith(f".{domain.lstrip('.')}") or (not domain.startswith(".") and host == domain)
