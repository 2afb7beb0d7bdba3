"""Addresses that a server of ours listens on: this machine's own, unless told otherwise."""

from __future__ import annotations

from ..errors import OptionError

LOOPBACK = ("127.0.0.1", "localhost")


def is_public(host: str) -> bool:
    """Whether other machines can reach a server at this address; raises `OptionError` for an IPv6 one."""
    if ":" in host:
        raise OptionError(f"--host takes an IPv4 address or a name, found {host!r}; for this machine alone leave it out")
    return host not in LOOPBACK
