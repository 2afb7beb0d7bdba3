"""What can be exported: each kind of decoder brought to one shape, `Source`.

A Hugging Face model, a module that calls `cached_attention`, and a module with plain attention that takes and returns
`past_key_values` differ here and nowhere else. `huggingface` builds the first kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from onnx_textgen.package.manifest import Geometry, Target

from ..errors import ExportError
from .attention import EagerLayer, KeyValueCache, LayerCache, WatchedLayer, watched
from .onnx_attention import make_traced_layers, positions_from_mask

Pasts = list[tuple[Tensor, Tensor]]
"""Per layer, key and value [batch, kv_heads, past, head_size]."""
Caches = Sequence[LayerCache] | KeyValueCache
CachedForward = Callable[[Tensor, Tensor, Caches], Tensor]
Traceable = Callable[[Target, Tensor, Tensor, list[Tensor]], tuple[Tensor, list[Tensor]]]
"""What the tracer calls: target, input_ids, attention_mask and pasts in; logits and presents out, both as `Source.cache` lists."""
Attentions = Callable[[Tensor, int], list[Tensor]]
"""For ids [1, tokens] and a number of last rows: PyTorch's attention weights [1, heads, rows, tokens], per layer that attends."""

NO_LENGTH = (
    "does not say how long its texts may be; add --context-length N (in Python: context_length=N), where N is the most tokens that "
    "you will use: the length it was trained on, or more if it has no positions, as with ALiBi or a recurrent state"
)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor that the decoder takes in and gives back changed."""

    name: str
    """The graph's input, `past_...`."""
    present: str
    """The graph's output."""
    shape: tuple[int | str, ...]
    """Sizes; "batch" and "length" (of what was fed so far) stand for those that vary. Without a "length" it is a state."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Border:
    """A number of tokens beyond which a decoder computes in another way."""

    length: int
    what: str

    def in_words(self) -> str:
        """For a report.

        >>> Border(4096, "the window of").in_words()
        'the window of 4,096'
        """
        return f"{self.what} {self.length:,}"


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A decoder, ready to be traced and to be compared with."""

    module: nn.Module
    """Owns the weights."""
    call: Traceable
    reference: Callable[[Tensor], Tensor]
    """Plain PyTorch: logits [1, tokens, vocabulary] of ids [1, tokens], by code that the export does not touch."""
    head: nn.Module | None
    """The layer whose output is the logits, to compute them only where asked; None: slice afterwards."""
    geometry: Geometry
    windows: tuple[int, ...]
    """Sliding windows and chunks in use, empty where every layer sees everything."""
    cache: tuple[CacheTensor, ...]
    """What `call` takes and gives back, in this order."""
    one_token: bool = False
    """The graph takes one token per row and run, as recurrent layers do."""
    door: str = "fused"
    """How its attention is traced: "fused" (one operator) or "own" (its own code)."""
    padding_id: int | None = None
    """An id that the model gives no position of its own, so that no text may hold it; None where there is none such."""
    attentions: Attentions | None = None
    """Where attention goes through `cached_attention`, and a whole text at once."""
    rotary_switch: int | None = None
    """Beyond this many tokens keys are turned by other frequencies: a text that crosses it is fed anew."""

    @property
    def borders(self) -> tuple[Border, ...]:
        """The lengths beyond which the decoder computes in another way, in order; a proof is to cross them."""
        switch = [Border(self.rotary_switch, "the rotary switch at")] if self.rotary_switch is not None else []
        return tuple(sorted([*(Border(window, "the window of") for window in self.windows), *switch]))


def find_head(module: nn.Module, run: Callable[[], Tensor]) -> nn.Module | None:
    """The linear layer whose output is, untouched, what `run` returns."""
    outputs: list[tuple[Tensor, nn.Module]] = []  # the tensors themselves: an id may be used again
    hooks = [
        part.register_forward_hook(lambda part, _, output: outputs.append((output, part)))
        for part in module.modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with torch.no_grad():
            logits = run()
        return next((part for output, part in outputs if output is logits), None)
    finally:
        for hook in hooks:
            hook.remove()


def context_length_of(module: nn.Module, given: int | None) -> int:
    """The context length given, or what the module's config says."""
    found = given or getattr(getattr(module, "config", None), "context_length", None)
    if not isinstance(found, int):
        raise ExportError(f"{type(module).__name__} {NO_LENGTH}")
    return found


def checked_logits(module: nn.Module, found: object) -> Tensor:
    """What a module gave for two tokens, if it is their logits."""
    if isinstance(found, Tensor) and found.ndim == 3 and tuple(found.shape[:2]) == (1, 2):
        return found
    what = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise ExportError(
        f"{type(module).__name__}.forward should return logits [batch, tokens, vocabulary], of every token that it is given; "
        f"for two tokens it gave {what}"
    )


def checked_presents(module: nn.Module, found: object) -> list[Tensor]:
    """Keys and values in turn, if that is what a module returned as its presents."""
    pairs = list(found) if isinstance(found, list | tuple) else []
    if pairs and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        tensors = [tensor for pair in pairs for tensor in pair]
        if all(isinstance(tensor, Tensor) and tensor.ndim == 4 for tensor in tensors):
            return tensors
    raise ExportError(
        f"{type(module).__name__}.forward should return (logits, present_key_values), the second one pair (key, value) of "
        "[batch, kv_heads, tokens, head_size] per layer"
    )


def probe(module: nn.Module, forward: CachedForward) -> tuple[KeyValueCache, Tensor]:
    """Run two tokens through a decoder over an eager cache, to see what it keeps; returns the cache and the logits."""
    cache = KeyValueCache()
    with torch.no_grad():
        logits = checked_logits(module, forward(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), cache))
    if not cache.layers:
        raise ExportError("the model's attention cannot be traced: no layer called cached_attention with the cache it was given")
    for index, layer in cache.layers.items():
        if layer.key is not None and layer.key.shape[2] != 2:
            raise ExportError(f"cache[{index}] was given to several attentions; give each its own: cache[0], cache[1] ...")
    return cache, logits


def width_of(module: nn.Module) -> int:
    """The size of the vectors that stand for tokens."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            return part.embedding_dim
    raise ExportError(f"{type(module).__name__} has no nn.Embedding for its tokens")


def key_value_cache(kept: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[CacheTensor, ...]:
    """The cache of attention layers, from what a probe left: layer number, key and value [batch, heads, tokens, size]."""
    return tuple(
        CacheTensor(
            f"past_key_values.{layer}.{part}", f"present.{layer}.{part}", ("batch", tensor.shape[1], "length", tensor.shape[3])
        )
        for layer, key, value in kept
        for part, tensor in (("key", key), ("value", value))
    )


def make_geometry(
    module: nn.Module, cache: tuple[CacheTensor, ...], logits: Tensor, *, heads: int, context_length: int
) -> Geometry:
    """Sizes read off a probe; heads and head size are those of the first layer that attends."""
    keys = [tensor.shape for tensor in cache if tensor.name.endswith(".key")]
    kv_heads, head_size = (int(keys[0][1]), int(keys[0][3])) if keys else (1, 1)
    return Geometry(
        layers=max(len(keys), 1),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden_size=width_of(module),
        vocab_size=logits.shape[-1],
        context_length=context_length,
    )


def in_pairs(tensors: Sequence[Tensor]) -> Pasts:
    """Keys and values in turn -> (key, value) per layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def source_from_cached(
    module: nn.Module, forward: CachedForward, *, reference: Callable[[Tensor], Tensor], head: nn.Module | None, context_length: int
) -> Source:
    """A source whose attention goes through `cached_attention`; `forward` takes ids, positions and one cache per layer."""
    cache, logits = probe(module, forward)
    kept = [
        (index, layer.key, layer.value)
        for index, layer in sorted(cache.layers.items())
        if layer.key is not None and layer.value is not None
    ]
    if [index for index, _, _ in kept] != list(range(len(cache))):
        raise ExportError(f"the layers' caches are numbered {sorted(cache.layers)}; number them 0, 1, 2 ...")
    layers = [cache[index] for index in range(len(cache))]
    tensors, in_place = key_value_cache(kept), fits_in_place(layers)

    def call(target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        new = input_ids.shape[1]
        traced = make_traced_layers(target, in_pairs(pasts), attention_mask, new, in_place=in_place)
        logits = forward(input_ids, positions_from_mask(attention_mask, new), traced)
        return logits, [tensor for layer in traced for tensor in layer.presents()]

    def attentions(ids: Tensor, rows: int) -> list[Tensor]:
        watching = [WatchedLayer(rows) for _ in layers]
        forward(ids, torch.arange(ids.shape[1])[None], watching)
        return watched(watching)

    geometry = make_geometry(module, tensors, logits, heads=layers[0].heads, context_length=context_length)
    return Source(module, call, reference, head, geometry, windows_of(layers), tensors, attentions=attentions)


def fits_in_place(layers: Sequence[EagerLayer]) -> bool:
    """Whether GroupQueryAttention can do what the layers did: keys and values of one size, a multiple of 8, and no chunks."""
    return all(
        layer.key is not None
        and layer.value is not None
        and layer.key.shape == layer.value.shape
        and layer.key.shape[3] % 8 == 0
        and layer.form.chunk is None
        for layer in layers
    )


def windows_of(layers: Sequence[EagerLayer]) -> tuple[int, ...]:
    """The windows and chunks in use; a long text is to cross them."""
    return tuple(sorted({size for layer in layers for size in (layer.form.window, layer.form.chunk) if size}))


def source_from_plain(module: nn.Module, *, context_length: int) -> Source:
    """A source with attention of its own, which takes `past_key_values` and returns `(logits, present_key_values)`.

    Both are one pair (key, value) of [batch, kv_heads, tokens, head_size] per layer; `past_key_values=None` is no past. It
    may take `attention_mask` [batch, past + new] and `position_ids` [batch, new] too, and gets those it names. It is exported
    as it is, so its cache grows by whatever it does to join past and new.
    """
    named = inspect.signature(module.forward).parameters

    def positions(input_ids: Tensor, attention_mask: Tensor, past: Pasts | None) -> Tensor:
        new = input_ids.shape[1]
        if "attention_mask" in named:
            return positions_from_mask(attention_mask, new)
        return (torch.arange(new) + (past[0][0].shape[2] if past else 0))[None]  # no padding without a mask

    def run(input_ids: Tensor, attention_mask: Tensor, past: Pasts | None) -> tuple[Tensor, list[Tensor]]:
        options: dict[str, Tensor] = {}
        if "attention_mask" in named:
            options["attention_mask"] = attention_mask
        if "position_ids" in named:
            options["position_ids"] = positions(input_ids, attention_mask, past)
        result = module(input_ids, past_key_values=past, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            found = type(result).__name__
            raise ExportError(f"{type(module).__name__}.forward should return (logits, present_key_values), found {found}")
        logits, presents = result
        return logits, checked_presents(module, presents)

    def reference(ids: Tensor) -> Tensor:
        return run(ids, torch.ones_like(ids), None)[0]

    def call(target: Target, input_ids: Tensor, attention_mask: Tensor, pasts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return run(input_ids, attention_mask, in_pairs(pasts))

    two = torch.tensor([[0, 1]])
    with torch.no_grad():
        logits, kept = run(two, torch.ones_like(two), None)
    checked_logits(module, logits)
    tensors = key_value_cache([(index, key, value) for index, (key, value) in enumerate(in_pairs(kept))])
    geometry = make_geometry(module, tensors, logits, heads=kept[0].shape[1], context_length=context_length)
    head = find_head(module, lambda: reference(two))
    return Source(module, call, reference, head, geometry, windows=(), cache=tensors)


def source_from_module(module: nn.Module, *, context_length: int | None = None) -> Source:
    """A source from a user's module, by the names its `forward` takes: `cache` or `past_key_values`."""
    named = inspect.signature(module.forward).parameters
    length = context_length_of(module, context_length)
    if "past_key_values" in named:
        return source_from_plain(module, context_length=length)
    if "cache" not in named:
        raise ExportError(
            f"{type(module).__name__}.forward takes {', '.join(named)}; it needs `cache` (attention through cached_attention) "
            "or `past_key_values` (attention of its own)"
        )

    def forward(input_ids: Tensor, position_ids: Tensor, cache: Caches) -> Tensor:
        options = {"position_ids": position_ids} if "position_ids" in named else {}
        logits: Tensor = module(input_ids, cache=cache, **options)
        return logits

    def reference(ids: Tensor) -> Tensor:
        options = {"position_ids": torch.arange(ids.shape[1])[None]} if "position_ids" in named else {}
        logits: Tensor = module(ids, cache=None, **options)
        return logits

    head = find_head(module, lambda: reference(torch.tensor([[0, 1]])))
    return source_from_cached(module, forward, reference=reference, head=head, context_length=length)


@contextlib.contextmanager
def only_these_positions(head: nn.Module | None, positions: Tensor) -> Iterator[list[Tensor]]:
    """Give the output layer only some positions of its input, so that no logits are computed which nobody asked for.

    The list holds what it was given: hidden states [batch, positions, width].
    """
    taken = list[Tensor]()
    if head is None:
        yield taken
        return

    def take(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken.append(given[0][:, positions])
        return (taken[-1], *given[1:])

    hook = head.register_forward_pre_hook(take)
    try:
        yield taken
    finally:
        hook.remove()
