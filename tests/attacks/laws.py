"""All laws, by the module that makes their cases."""

from . import disk, page, threads, wire

LAWS = (*disk.LAWS, *wire.LAWS, *page.LAWS, *threads.LAWS)
