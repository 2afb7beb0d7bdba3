"""Attention maps of the embedded models: what they are, what they cost nothing of, and how they are refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import onnx_textgen
from onnx_textgen.errors import OptionError, PackageError, PromptError
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import ATTENTION_GRAPH
from onnx_textgen.tasks import attention_maps

TEXT = "Lily had a red ball. One day, the ball rolled away and she could not find it."
PLAIN = Path(__file__).parents[2] / "packages" / "ort"
NUMBERS = PLAIN.with_name("numbers")


@pytest.mark.parametrize("name", ["story", "tiny-transformer"])
def test_a_row_is_a_tokens_shares_of_those_before_it(name: str) -> None:
    model = onnx_textgen.load(name, device="cpu", threads=1)
    maps, geometry, ids = model.attentions(TEXT), model.manifest.geometry, model.encode(TEXT)
    assert maps.weights.shape == (geometry.layers, geometry.heads, len(ids), len(ids))
    assert maps.weights.dtype == np.float32
    assert maps.token_ids == tuple(ids)
    assert "".join(maps.pieces[1:]) == TEXT, "behind the begin token"
    assert maps.layers == tuple(range(geometry.layers))
    assert maps.weights.min() >= 0
    assert not np.triu(maps.weights, k=1).any(), "nobody looks ahead"
    np.testing.assert_allclose(maps.weights.sum(axis=-1), 1, atol=1e-5)


def test_the_last_rows_alone_are_those_of_the_whole(story: onnx_textgen.Model) -> None:
    whole = story.attentions(TEXT).weights
    np.testing.assert_allclose(story.attentions(TEXT, last=3).weights, whole[:, :, -3:], atol=1e-6)
    assert story.attentions(TEXT, last=10_000).weights.shape == whole.shape


def test_a_text_fed_in_small_pieces_has_the_same_maps(story: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = story.encode(TEXT)
    whole = story.attentions(ids).weights
    row_bytes = whole[:, :, :1].nbytes
    monkeypatch.setattr(attention_maps, "PART_BYTES", 5 * row_bytes)
    np.testing.assert_allclose(story.attentions(ids).weights, whole, atol=0.02)  # int8: activations are rounded otherwise
    np.testing.assert_allclose(story.attentions(ids, last=2).weights, whole[:, :, -2:], atol=0.02)


def test_a_text_whose_maps_take_too_much_is_refused(story: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_maps, "MOST_BYTES", 2**20)
    ids = [5] * 500
    with pytest.raises(PromptError, match=r"the attention of 500 tokens in 6 layers of 5 heads takes 29 MiB and 1 are the most"):
        story.attentions(ids)
    assert story.attentions(ids[:40], last=8).weights.shape == (6, 5, 8, 40)


def test_a_package_without_maps_says_how_to_get_them(story: onnx_textgen.Model) -> None:
    model = onnx_textgen.load(PLAIN, device="cpu", threads=1)
    assert (model.manifest.has_attention_maps, story.manifest.has_attention_maps) == (False, True)
    with pytest.raises(PackageError, match="has no attention maps; export it again with --attention-maps"):
        model.attentions("a cat")
    with pytest.raises(OptionError, match="last should be a whole number of at least 1"):
        story.attentions("a cat", last=0)


@pytest.fixture(scope="module")
def numbers() -> onnx_textgen.Model:
    """An encoder-decoder with maps."""
    return onnx_textgen.load(NUMBERS, device="cpu", threads=1)


def test_each_token_of_a_text_shares_its_looks_among_the_source(numbers: onnx_textgen.Model) -> None:
    maps, geometry = numbers.attentions("forty two", source="42"), numbers.manifest.geometry
    assert (maps.pieces, maps.source_pieces) == (("<pad>", "forty", "two", "</s>"), ("4", "2", "</s>"))
    assert maps.cross_weights.shape == (geometry.layers, geometry.heads, 4, 3)
    for weights in (maps.weights, maps.cross_weights):
        assert weights.min() >= 0
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert not np.triu(maps.weights, k=1).any(), "nobody looks ahead"


def test_the_beginning_of_a_text_looks_at_the_source_alone(numbers: onnx_textgen.Model) -> None:
    first = numbers.attentions([], source="42")
    np.testing.assert_allclose(first.weights, 1)
    whole = numbers.attentions("forty two", source="42")
    np.testing.assert_allclose(first.cross_weights, whole.cross_weights[:, :, :1], atol=1e-6)


def test_maps_over_a_source_are_the_same_in_small_pieces(numbers: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    text, source = "four thousand and seventy one", "4071"
    whole = numbers.attentions(text, source=source)
    monkeypatch.setattr(attention_maps, "PART_BYTES", 0)
    found = numbers.attentions(text, source=source, last=4)
    np.testing.assert_allclose(found.weights, whole.weights[:, :, -4:], atol=1e-5)
    np.testing.assert_allclose(found.cross_weights, whole.cross_weights[:, :, -4:], atol=1e-5)


def test_a_source_is_for_an_encoder_decoder_and_it_needs_one(numbers: onnx_textgen.Model, story: onnx_textgen.Model) -> None:
    with pytest.raises(OptionError, match="source is for encoder-decoders; leave it out"):
        story.attentions("a cat", source="a dog")
    with pytest.raises(OptionError, match="is an encoder-decoder: give the source of the text too"):
        numbers.attentions("forty two")
    assert story.attentions("a cat").cross_weights.shape[3] == 0


def test_ordinary_generation_never_opens_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx_textgen.load("tiny-transformer", device="cpu", threads=1)
    model.generate("The dog", max_new_tokens=2)
    assert "attention_graph" not in vars(model)


def test_a_changed_graph_is_found_at_loading_and_before_it_is_opened(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(find_package("tiny-transformer"), tmp_path / "package"))
    model = onnx_textgen.load(folder, device="cpu", threads=1)
    path = folder / ATTENTION_GRAPH
    original = path.read_bytes()
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    with pytest.raises(PackageError, match=f"{ATTENTION_GRAPH} is damaged: its sha256"):
        model.attentions("a cat")
    with pytest.raises(PackageError, match=f"{ATTENTION_GRAPH} is damaged: its sha256"):
        onnx_textgen.load(folder)
    path.unlink()
    with pytest.raises(PackageError, match=f"{ATTENTION_GRAPH} is missing"):
        onnx_textgen.load(folder)
