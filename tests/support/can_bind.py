"""Whether this machine has an address, for tests that are skipped where it does not."""

import socket


def can_bind(host: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
