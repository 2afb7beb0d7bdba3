"""`httpx` with answers waited for as long as a loaded machine may need: it gives up after five seconds by itself."""

import functools

import httpx

LONGEST_WAIT = 300
"""Seconds: a guard, and no measure."""

get = functools.partial(httpx.get, timeout=LONGEST_WAIT)
head = functools.partial(httpx.head, timeout=LONGEST_WAIT)
options = functools.partial(httpx.options, timeout=LONGEST_WAIT)
post = functools.partial(httpx.post, timeout=LONGEST_WAIT)
stream = functools.partial(httpx.stream, timeout=LONGEST_WAIT)
