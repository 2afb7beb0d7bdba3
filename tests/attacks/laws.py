"""All laws, by the module that makes their cases."""

from . import disk, flips, folders, graphs, manifests, page, sessions, templates, threads, tokenizers, wire

LAWS = (
    *flips.LAWS,
    *manifests.LAWS,
    *graphs.LAWS,
    *tokenizers.LAWS,
    *templates.LAWS,
    *folders.LAWS,
    *sessions.LAWS,
    *disk.LAWS,
    *wire.LAWS,
    *page.LAWS,
    *threads.LAWS,
)
