"""All laws, by the module that makes their cases."""

from . import flips, folders, graphs, manifests, sessions, templates, tokenizers

LAWS = (
    *flips.LAWS,
    *manifests.LAWS,
    *graphs.LAWS,
    *tokenizers.LAWS,
    *templates.LAWS,
    *folders.LAWS,
    *sessions.LAWS,
)
