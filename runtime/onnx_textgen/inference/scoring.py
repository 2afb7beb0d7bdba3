"""Log-probabilities of a text under a model; the logits of all its tokens are never held at once.

They are the model's own, before temperature and the other stages of `sampling.sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..cancellation import UNCANCELLED, CancelScope
from ..errors import ModelError, PromptError
from ..results import Alternative
from ..sampling.truncation import top_k_ids
from .decoder import Decoder
from .graph_runner import Logits

MOST_LOGITS = 1 << 22
"""The most float32 logits held at a time (16 MiB)."""
Piece = Callable[[int], str]
"""The text of an id."""


def score_tokens(
    decoder: Decoder,
    token_ids: Sequence[int],
    *,
    first: int = 1,
    stride: int | None = None,
    alternatives: int = 0,
    piece: Piece = "<{}>".format,
    scope: CancelScope = UNCANCELLED,
) -> tuple[tuple[float, ...], tuple[tuple[Alternative, ...], ...]]:
    """The natural-log probability of each token from position `first`, given those before it, and the most likely tokens there.

    Tokens before `first` that the decoder holds are not computed again. A text longer than the context is scored in windows that
    move by `stride` tokens: each token is predicted from at least the context less `stride` tokens before it, as far as there are
    that many (transformers' strided perplexity). No probability depends on later tokens, not even beyond a rope switch. Raises
    `PromptError` for a text of one token, and for a text beyond the context without a stride.
    """
    if len(token_ids) < 2:
        raise PromptError("a text of one token has nothing to score; give a longer one")
    ids = np.asarray(token_ids, dtype=np.int64)
    logprobs, others = list[float](), list[tuple[Alternative, ...]]()
    for begin, start, end in windows(len(ids), decoder.geometry.context_length, stride):
        if end > first:
            for logits, targets in predictions(decoder, ids[begin:end], max(start, first) - begin, scope):
                logprobs += target_logprobs(logits, targets).tolist()
                if alternatives:
                    others += [most_likely_tokens(row, alternatives, piece) for row in logits]
    if any(map(math.isnan, logprobs)):
        raise ModelError("the model's logits are not numbers, so nothing can be scored; check it with: onnx-textgen verify DIR")
    return tuple(logprobs), tuple(others)


def windows(length: int, context: int, stride: int | None) -> Iterator[tuple[int, int, int]]:
    """For each window: its begin, the first token that it predicts, and its end.

    >>> list(windows(7, 4, 2))
    [(0, 1, 4), (2, 4, 6), (4, 6, 7)]
    """
    if length > context and stride is None:
        raise PromptError(f"the text has {length:,} tokens and the context {context:,}; give a stride to score it in windows")
    if stride is not None and not 1 <= stride < context:
        raise PromptError(f"stride should be from 1 to {context - 1:,}, less than the context, found {stride:,}")
    begin, first = 0, 1
    while True:
        end = min(begin + context, length)
        yield begin, first, end
        if end == length:
            return
        begin, first = begin + (stride or context), end


def predictions(
    decoder: Decoder, ids: npt.NDArray[np.int64], first: int, scope: CancelScope
) -> Iterator[tuple[Logits, npt.NDArray[np.int64]]]:
    """Logits [tokens, vocabulary] and the ids that they predict, from the token at `first`, in parts of bounded size."""
    size = max(1, min(512, MOST_LOGITS // decoder.geometry.vocab_size))
    held = decoder.reusable(ids[: first - 1].tolist(), most=first - 1)
    decoder.rewind(held)
    for start in range(held, first - 1, size):
        decoder.feed(ids[start : min(start + size, first - 1)].tolist(), scope=scope)
    start, switch = first - 1, decoder.capabilities.rope_switch_length
    while start < len(ids) - 1:
        end = min(start + size, len(ids) - 1)
        if switch is not None and start < switch < end:
            end = switch  # tokens before the switch are predicted as in a text that ends there
        yield decoder.feed(ids[start:end].tolist(), every_position=True, scope=scope), ids[start + 1 : end + 1]
        start = end


def target_logprobs(logits: Logits, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """log softmax(logits)[target] per row; logits: [tokens, vocabulary], targets: [tokens]."""
    highest = logits.max(axis=1)
    totals = np.exp(logits - highest[:, None]).sum(axis=1, dtype=np.float64)
    chosen = logits[np.arange(len(targets)), targets]
    return np.asarray(chosen - highest - np.log(totals), dtype=np.float64)


def mean_logprob(logprobs: Sequence[float]) -> float:
    """The mean over the drawn tokens, an end-of-text id included: the score that ranks drawn texts of one prompt."""
    return math.fsum(logprobs) / max(1, len(logprobs))


def most_likely_tokens(logits: Logits, count: int, piece: Piece) -> tuple[Alternative, ...]:
    """The `count` most likely tokens for logits [vocabulary], most likely first; of equal ones the lower id comes first."""
    ids = top_k_ids(logits, count)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    logprobs = target_logprobs(np.broadcast_to(logits, (1, logits.size)), ids[:1])[0] + (logits[ids] - logits[ids[0]])
    return tuple(Alternative(int(i), piece(int(i)), float(p)) for i, p in zip(ids, logprobs, strict=True))


def split_pair(encode: Callable[[str], list[int]], prompt: str, continuation: str) -> tuple[list[int], int]:
    """Token ids of a prompt with its continuation, and how many of them are the prompt's.

    Both are tokenised as one text, and split where the prompt alone would end. White space at the prompt's end is first moved to
    the continuation, as most tokenizers join it with the next word (lm-evaluation-harness does the same).
    """
    bare = prompt.rstrip()
    continuation = prompt[len(bare) :] + continuation
    whole = encode(bare + continuation)
    count = min(len(encode(bare)), len(whole) - 1) if bare else 0
    return whole, count
