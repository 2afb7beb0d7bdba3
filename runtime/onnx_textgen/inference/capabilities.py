"""Whether a graph can be a decoder's: refused in one line otherwise, before anything is run."""

from __future__ import annotations

from ..backends.protocol import Graph
from ..backends.signature import ELEMENT_TYPES, LOGITS
from ..errors import PackageError
from ..kv_cache.factory import check_cache
from ..package.manifest import Geometry


def check_graph(session: Graph, geometry: Geometry) -> None:
    """Refuse a graph whose inputs, outputs, types or sizes are not those that `Decoder` works with; raises `PackageError`."""
    check_cache(session)
    roles = session.roles
    logits = session.name_of(LOGITS)
    if "input_ids" not in roles or logits not in session.outputs:
        raise PackageError("the graph lacks input_ids or logits, which no decoder here can do without; export the model again")
    for role in ("input_ids", "attention_mask", "position_ids"):
        taken = roles[role].shape if role in roles else ()
        if role in roles and (len(taken) != 2 or (isinstance(taken[1], int) and taken[1] != 1)):
            raise PackageError(f"the graph takes {role} as {list(taken)}, not [batch, tokens]; export the model again")
    shape, size = session.outputs[logits][0], geometry.vocab_size
    if len(shape) != 3 or (isinstance(shape[-1], int) and shape[-1] != size):
        raise PackageError(
            f"the graph's logits have the shape {shape}, the manifest's geometry asks for [any, any, {size}]; "
            "export the model again"
        )
    check_rows(session, LOGITS)


def check_rows(session: Graph, output: str) -> None:
    """Refuse an output that is no row of real numbers for each token."""
    shape, element = session.outputs[session.name_of(output)]
    if len(shape) != 3 or element not in ELEMENT_TYPES:
        raise PackageError(
            f"the graph's {output.replace('_', ' ')} are {element} {shape}, not float, float16 or double [batch, tokens, width]; "
            "export the model again"
        )
