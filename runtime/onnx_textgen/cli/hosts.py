"""Addresses that a server of ours listens on: this machine's own, unless told otherwise."""

from __future__ import annotations

import ipaddress

from ..errors import OptionError

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
"""This machine's own names, as URLs have them."""


def is_public(host: str) -> bool:
    """Whether other machines can reach a server at this address; raises `OptionError` for what is none.

    >>> [is_public(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")]
    [False, False, False, True, True, True]
    """
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        if ":" in host or "[" in host:
            raise OptionError(f"--host takes an address, such as 127.0.0.1 or ::1, or a name, found {host!r}") from error
        return host != "localhost"


def in_url(host: str) -> str:
    """The address as a URL has it: one of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def names_of(host: str) -> list[str]:
    """The names under which clients may call a server at this address; any, where others can reach it.

    A web page of others cannot reach it under another name then (DNS rebinding).
    """
    return ["*"] if is_public(host) else list(dict.fromkeys([*LOOPBACK, in_url(host)]))
