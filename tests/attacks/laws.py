"""All laws, by the module that makes their cases."""

from . import flips, graphs, manifests

LAWS = (*flips.LAWS, *manifests.LAWS, *graphs.LAWS)
