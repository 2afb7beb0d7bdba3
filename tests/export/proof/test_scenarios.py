"""A draft of a greedy continuation is corrected token by token, or cut where it is wrong too often."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.package.manifest import GoldenRun
from onnx_textgen_export import export
from onnx_textgen_export.proof import scenarios
from onnx_textgen_export.proof.scenarios import GOLDEN_TOKENS, corrected
from onnx_textgen_export.sources.tiny_transformer import DecoderConfig, TinyTransformer

VOCABULARY = 50


def right_token(ids: Sequence[int]) -> int:
    """What follows `ids` in exact arithmetic."""
    return (7 * sum(ids) + len(ids)) % VOCABULARY


class Exact:
    """A decoder with the logits of that rule."""

    def feed(self, ids: list[int], *, every_position: bool) -> np.ndarray:
        assert every_position
        return np.eye(VOCABULARY)[[right_token(ids[: end + 1]) for end in range(len(ids))]]


def drafted(prompt: Sequence[int], wrong: set[int], new: Sequence[int] = ()) -> GoldenRun:
    """A continuation by another arithmetic, which is wrong at some places."""
    made = list(new)
    while len(made) < GOLDEN_TOKENS:
        made.append((right_token([*prompt, *made]) + (len(made) in wrong)) % VOCABULARY)
    return GoldenRun(tuple(prompt), tuple(made))


PROMPTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8)


@given(PROMPTS, st.sets(st.integers(0, GOLDEN_TOKENS - 1), max_size=12), st.integers(0, 5))
def test_a_corrected_draft_is_the_exact_continuation_or_its_beginning(prompt: list[int], wrong: set[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenarios, "greedy", lambda _, __, prompt, ___, new: drafted(prompt, wrong, new))
        found = corrected(lambda *_: Exact(), None, drafted(prompt, wrong), lambda: None, most=most)  # type: ignore[arg-type]
    exact = drafted(prompt, set()).new_ids
    assert found.new_ids == exact[: sorted(wrong)[most] + 1 if len(wrong) > most else None]


def test_a_large_model_is_compared_on_texts_that_are_half_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TinyTransformer(DecoderConfig(vocab_size=64, width=32, layers=1, context_length=2048))
    monkeypatch.setattr(scenarios, "LARGE", 0)
    made = export(source, tmp_path / "out", precision="int8", eos_ids=())
    certificate = made.manifest.certificate
    assert certificate["longest_text"] == scenarios.LONG_LENGTH // 2
    assert [each["name"] for each in certificate["same_weights"]] == ["ragged batch"]
    assert {len(run.new_ids) for run in made.manifest.golden} == {GOLDEN_TOKENS // 2}
