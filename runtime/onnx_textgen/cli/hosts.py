"""Addresses that a server of ours listens on: this machine's own, unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import socket

from ..errors import OptionError

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
"""This machine's own names, as URLs have them."""
EVERY_ADDRESS = ("0.0.0.0", "::")
"""Of this machine; a browser on it takes localhost."""
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""How an address is refused that this machine does not have."""


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


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at every address of a host, and belong to this process alone; at one port, where 0 takes a free one.

    `::` takes callers by IPv4 too, as `0.0.0.0` does. Raises `OptionError` where there is no such host, or the port is taken.
    """
    both = host == EVERY_ADDRESS[1] and socket.has_dualstack_ipv6()
    found: list[socket.socket] = []
    absent: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, address in dict.fromkeys((family, address) for family, *_, address in addresses):
            try:
                found.append(socket.create_server((address[0], port, *address[2:]), family=family, dualstack_ipv6=both))
                port = found[0].getsockname()[1]
            except OSError as error:
                if error.errno not in ABSENT:  # a name may have an address of IPv6 where there is no IPv6
                    raise
                absent = error
        if absent is not None and not found:
            raise absent
    except OSError as error:
        for each in found:
            each.close()
        is_name = isinstance(error, socket.gaierror)
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python adds the address, which is in the line already
        if is_name or error.errno in ABSENT:
            raise OptionError(f"--host {host} is no address or name of this machine: {why}; choose another") from error
        raise OptionError(f"port {port} of {host} cannot be used ({why}); choose another with --port") from error
    return found
