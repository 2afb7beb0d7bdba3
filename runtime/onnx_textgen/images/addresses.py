"""Fetches pictures from addresses of the web, for models that were opened so.

Whoever writes a prompt names the address, so a server must not be led to machines that only it can reach: the connection goes to
a public address alone, which is looked up once, and so does each redirection. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import ImageError, first_line
from ..options.checks import shown
from ..sizes import in_words

SCHEMES = ("https", "http")
MOST_SECONDS = 20.0
"""For a picture, with all redirections."""
MOST_REDIRECTIONS = 4
MOST_CHARACTERS = 4096
"""Of an address."""
PART_BYTES = 1 << 16
MOVED = frozenset({301, 302, 303, 307, 308})
FOR_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "2002::/16", "2001::/32")))
"""Addresses that stand for those of IPv4, private ones too: NAT64, 6to4 and Teredo."""


def fetched(address: str, most_bytes: int) -> bytes:
    """The content at an address; raises `ImageError` if it cannot be had, is too large, or is not public."""
    end, place = time.monotonic() + MOST_SECONDS, address
    try:
        for _ in range(MOST_REDIRECTIONS + 1):
            with answer_of(place, end) as answer:
                leads = answer.getheader("Location")
                if answer.status in MOVED and leads:
                    place = urljoin(place, leads)
                elif answer.status != http.HTTPStatus.OK:
                    raise ImageError(f"it answers {answer.status} {answer.reason:.60}")
                else:
                    content = content_of(answer, most_bytes)
                    left(end)  # at that time a connection is closed, which looks like the end of a content without a length
                    return content
        raise ImageError(f"it leads to more than {MOST_REDIRECTIONS} others")
    except (OSError, ValueError, http.client.HTTPException, ImageError) as error:
        reason = f"it took longer than {MOST_SECONDS:.0f} s" if time.monotonic() >= end else first_line(error)
        raise ImageError(f"the picture at {shown(address)} cannot be fetched: {reason}") from error


@contextlib.contextmanager
def answer_of(address: str, end: float) -> Iterator[http.client.HTTPResponse]:
    """Within the context, the answer to a request; the connection is closed at the time `end` at the latest."""
    parts = checked(address)
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(socket.create_connection((public_address(host, port), port), timeout=left(end)))
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connected = stack.enter_context(secure.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False))
        timer = threading.Timer(left(end), close, [connected])  # the timeout of a socket is for each of its steps
        timer.daemon = True
        timer.start()
        stack.callback(timer.cancel)
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
        connection = http.client.HTTPConnection(host, port)
        connection.sock = connected
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"User-Agent": "onnx-textgen", "Accept": "image/*"})
        yield stack.enter_context(connection.getresponse())


def checked(address: str) -> SplitResult:
    """The parts of an address; raises `ImageError` for one of another kind."""
    parts = urlsplit(address)
    if len(address) > MOST_CHARACTERS or parts.scheme not in SCHEMES:
        raise ImageError("only addresses that begin with https:// or http:// are fetched")
    if not parts.hostname or parts.username is not None:
        raise ImageError("an address should have a host, and no user")
    return parts


def public_address(host: str, port: int) -> str:
    """An IP address of a host; raises `ImageError` if any of its addresses is not public."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if private := [each for each in found if not is_global(each)]:
        raise ImageError(f"{host:.100} is {private[0]}, which is no public address")
    return found[0]


def is_global(text: str) -> bool:
    """Return whether an IP address is one that anyone can reach.

    >>> [is_global(each) for each in ("1.1.1.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "2002:7f00:1::")]
    [True, False, False, False, False, False]
    """
    found = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    stands_for_another = isinstance(found, ipaddress.IPv6Address) and any(found in each for each in FOR_IPV4)
    return found.is_global and not found.is_multicast and not stands_for_another


def content_of(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """The content of an answer; raises `ImageError` if it is too large."""
    content = bytearray()
    while data := answer.read(PART_BYTES):
        content += data
        if len(content) > most_bytes:
            raise ImageError(f"it has more than {in_words(most_bytes)}")
    if answer.length:
        raise ImageError("the connection broke off")
    return bytes(content)


def left(end: float) -> float:
    """Seconds until a time; raises `TimeoutError` after it."""
    if (seconds := end - time.monotonic()) <= 0:
        raise TimeoutError
    return seconds


def close(connected: socket.socket) -> None:
    """End what a connection waits for."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
