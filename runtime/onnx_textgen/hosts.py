"""The addresses that the demo and the API server listen on: only this machine's, unless the user gives another."""

from __future__ import annotations

import errno
import ipaddress
import socket

from .errors import OptionError

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
"""Names of this machine for itself, as written in URLs."""
EVERY_ADDRESS = ("0.0.0.0", "::")
"""Hosts that stand for all addresses of this machine; a browser on it uses localhost instead."""
NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors for an address that this machine does not have."""


def is_public(host: str) -> bool:
    """Return whether other machines can reach a server at this address; raises `OptionError` if it is not an address or a name.

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
    """The address as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def names_of(host: str) -> list[str]:
    """The host names that a server at this address accepts in requests: any name if other machines can reach it.

    Otherwise a foreign web page cannot reach the server under another name (DNS rebinding).
    """
    return ["*"] if is_public(host) else list(dict.fromkeys([*LOOPBACK, in_url(host)]))


def listen(host: str, port: int) -> list[socket.socket]:
    """Open sockets that listen at every address of a host, all at one port; port 0 chooses a free one.

    No other process can share them. `::` accepts IPv4 callers too. Raises `OptionError` if the host is not an address or name of
    this machine, or the port is in use.
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
                if error.errno not in NO_SUCH_ADDRESS:  # a name may have an IPv6 address although the machine has no IPv6
                    raise
                absent = error
        if absent is not None and not found:
            raise absent
    except OSError as error:
        for each in found:
            each.close()
        is_name = isinstance(error, socket.gaierror)
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address, which the message has already
        if is_name or error.errno in NO_SUCH_ADDRESS:
            raise OptionError(f"--host {host} is not an address or name of this machine: {why}; choose another") from error
        raise OptionError(f"port {port} of {host} cannot be used ({why}); choose another with --port") from error
    return found
