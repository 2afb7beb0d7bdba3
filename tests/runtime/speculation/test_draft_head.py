"""What a draft head has read of the model's hidden states, through rejected drafts, pauses and reused prompts."""

from pathlib import Path

import numpy as np
import pytest

from onnx_textgen.errors import PackageError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.speculation.draft_head import MOST_KEPT, KnownStates, open_head_decoder
from support.cache_graphs import Attention, Tiny


def states(*tokens: int) -> np.ndarray:
    """A state per token that tells which one it is."""
    return np.array(tokens, np.float32)[:, None] * np.ones((1, 3), np.float32)


def test_states_of_a_rejected_draft_are_replaced() -> None:
    known = KnownStates()
    known.add(2, states(2, 3, 4))
    known.add(5, states(5, 60, 70, 80))
    known.add(6, states(6))
    assert (known.first, known.end) == (2, 7)
    assert known.take(7)[:, 0].tolist() == [2, 3, 4, 5, 6]
    assert (known.first, known.end) == (7, 7)


def test_states_beyond_the_text_are_dropped_when_it_is_read() -> None:
    known = KnownStates()
    known.add(0, states(0, 1, 2))
    known.add(3, states(3, 40, 50))
    assert known.take(4)[:, 0].tolist() == [0, 1, 2, 3]
    known.add(4, states(4))
    assert known.take(5)[:, 0].tolist() == [4]


def test_a_gap_begins_anew_and_long_prompts_keep_their_end() -> None:
    known = KnownStates()
    known.add(0, states(0, 1))
    known.add(9, states(9))
    assert (known.first, known.end) == (9, 10)
    for start in range(10, 10 + 2 * MOST_KEPT, 64):
        known.add(start, states(*range(start, start + 64)))
    assert known.end == 10 + 2 * MOST_KEPT
    assert known.end - known.first <= MOST_KEPT
    assert known.take(known.end)[0, 0] == known.end - MOST_KEPT


def test_a_graph_that_is_no_head_is_refused(tmp_path: Path) -> None:
    tiny = Tiny((Attention(0),))
    with pytest.raises(PackageError, match="takes or gives other states than a head does; export the model again"):
        open_head_decoder(tiny.open(tmp_path), tiny.geometry)


def test_nobody_gets_the_states_of_a_graph_that_has_none(tmp_path: Path) -> None:
    tiny = Tiny((Attention(0),))
    decoder = Decoder(tiny.open(tmp_path), tiny.geometry)
    decoder.runner.listeners = [lambda start, found: pytest.fail("there are none")]
    assert decoder.feed([1, 2, 3]).shape == (1, tiny.geometry.vocab_size)
