"""Prompts for text between a prefix and a suffix."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import PromptError
from onnx_textgen.text.infill import FAMILIES, InfillTokens, find_infill_tokens
from support.infilling import NAMES, make_infilling_folder

IDS = st.lists(st.integers(10, 99), max_size=5)


@pytest.fixture(scope="module")
def infilling(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose tokenizer has the control tokens."""
    folder = tmp_path_factory.mktemp("infill") / "story"
    with onnx_textgen.load() as story:
        make_infilling_folder(story.folder, folder)
    return onnx_textgen.load(folder, threads=1, device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_each_family_are_found_by_their_names(family) -> None:
    names = [name for name in (family.prefix, family.suffix, family.middle) if name]
    added = {"<s>": 0, **{name: 5 + place for place, name in enumerate(names)}, "<|fim_pad|>": 9}
    found = find_infill_tokens(added)
    assert found == InfillTokens(5, 6, 7 if family.middle else None, family.suffix_first, frozenset({9}))
    for name in names:
        assert find_infill_tokens({other: token_id for other, token_id in added.items() if other != name}) is None


@given(IDS, IDS, st.booleans())
def test_both_orders_have_both_parts_and_the_middle_last(prefix: list[int], suffix: list[int], suffix_first: bool) -> None:
    tokens = InfillTokens(1, 2, 3, suffix_first, frozenset())
    ids = tokens.prompt(prefix, suffix)
    parts = [[1, *prefix], [2, *suffix]]
    assert ids == [*parts[suffix_first], *parts[not suffix_first], 3]
    assert tokens.prompt(prefix, suffix, suffix_first=not suffix_first) == [*parts[not suffix_first], *parts[suffix_first], 3]


@given(st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=30), st.text("ab \n", max_size=20))
def test_a_prompt_is_what_the_tokenizer_makes_of_the_written_tokens(infilling: Model, prefix: str, suffix: str) -> None:
    first, second, middle, _ = NAMES
    assert infilling.encode_infill(prefix, suffix) == infilling.encode(f"{first}{prefix}{second}{suffix}{middle}")
    other_way = infilling.encode(f"{second}{suffix}{first}{prefix}{middle}")
    assert infilling.encode_infill(prefix, suffix, suffix_first=True) == other_way


def test_a_model_without_the_tokens_says_so(infilling: Model) -> None:
    with onnx_textgen.load() as story, pytest.raises(PromptError, match=re.escape("has no control tokens for a suffix")):
        story.encode_infill("a", "b")
    with pytest.raises(PromptError, match="characters; this model takes"):
        infilling.encode_infill("a" * 512 * 256, "b")
    with pytest.raises(PromptError, match="tokens; this model takes 511 at most"):
        infilling.encode_infill("a b c " * 200, "b")
