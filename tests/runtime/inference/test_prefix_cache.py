"""What earlier calls computed is used again, within a number of bytes, and changes no bit of what comes out."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("onnx")

from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import OptionError, PromptError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.inference.prefix_cache import SHORTEST, PrefixStore
from onnx_textgen.kv_cache import memory_plan
from onnx_textgen.kv_cache.snapshot import OWN
from support.cache_graphs import GRAPHS
from support.examples import examples

BEGIN = "Once upon a time, there was a little girl called Lily. She had a red ball and a big brown dog. "
ENDS = ["", "One day", "The dog ran", "The dog ran away and Lily", "Lily was sad because"]


@pytest.fixture(scope="module")
def forgetful() -> Model:
    """The default without a store; its int8 products make a hundredth of a difference of the last bit."""
    return onnx_textgen.load(threads=1, device="cpu", prefix_cache=0, exact_history=True)


@pytest.fixture
def mindful() -> Model:
    return onnx_textgen.load(threads=1, device="cpu", exact_history=True)


def test_every_text_is_the_one_that_a_model_without_a_store_writes(mindful: Model, forgetful: Model) -> None:
    reused = []
    for turn, end in enumerate([*ENDS, *reversed(ENDS)]):
        options = {"max_new_tokens": 40, "seed": turn}
        found = mindful.generate(BEGIN + end, **options)
        want = forgetful.generate(BEGIN + end, **options)
        assert (found.text, found.token_ids) == (want.text, want.token_ids)
        longer = BEGIN + end + found.text + " Then"  # what was generated becomes a prompt
        assert mindful.generate(longer, **options).text == forgetful.generate(longer, **options).text
        assert want.stats.reused_tokens == 0
        reused.append(found.stats.reused_tokens)
    assert reused[0] == 0
    assert min(reused[1:]) >= 20


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=6))
@examples(25)
def test_logits_agree_to_the_last_bit_however_prompts_overlap(forgetful: Model, cuts: list) -> None:
    """Prompts of a few texts, cut anywhere and gone on with: after each, what a fresh decoder has."""
    store, geometry = PrefixStore(2**26), forgetful.manifest.geometry
    for text, length, behind in cuts:
        ids = np.random.default_rng(text).integers(2, geometry.vocab_size, 60)[:length].tolist()
        decoder, fresh = forgetful.new_context(), forgetful.new_context()
        store.prepare(decoder, ids)
        np.testing.assert_array_equal(prefill(decoder, ids), prefill(fresh, ids))
        for token in range(2, 2 + behind):
            np.testing.assert_array_equal(decoder.feed([token]), fresh.feed([token]))
        store.keep(decoder, len(decoder.token_ids[0]))


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_cache_is_taken_out_and_put_back(kind: str, tmp_path) -> None:
    tiny = GRAPHS[kind]
    session, store = tiny.open(tmp_path), PrefixStore(2**20)
    ids = [5, 9, 1, 0, 28, 3, 3, 7, 11, 2, 4, 8, 19, 19, 6, 21, 13, 2]
    decoder = tiny.decoder(session, rows=3)
    prefill(decoder, ids[:12], row=1)
    store.keep(decoder, len(decoder.token_ids[1]), row=1)
    for prompt in (ids, ids[:12], [*ids[:10], 1, 2, 3], [1, *ids]):
        for row in (2, 0):
            other = tiny.decoder(session, rows=3)
            other.feed([1, 2, 3], row=1)
            store.prepare(other, prompt, row=row)
            want = tiny.logits(prompt)[-1]
            np.testing.assert_allclose(prefill(other, prompt, row=row), want, atol=2e-5 * np.abs(want).max())
            want = tiny.logits([1, 2, 3, 4])[-1]
            np.testing.assert_allclose(other.feed([4], row=1)[0], want, atol=2e-5 * np.abs(want).max())
    if not decoder.capabilities.has_states:
        other = tiny.decoder(session)
        store.prepare(other, ids)
        assert other.token_ids == [ids[:12]]


@pytest.mark.parametrize("kind", [kind for kind in GRAPHS if "states" in kind])
def test_a_chat_goes_on_where_a_template_leaves_thinking_out_and_another_begins_at_its_system_message(kind: str, tmp_path) -> None:
    tiny, end, assistant, think = GRAPHS[kind], 7, 3, 8
    opened = onnx_textgen.load(tiny.package(tmp_path), device="cpu", threads=1)
    geometry = dataclasses.replace(opened.manifest.geometry, context_length=1000)
    manifest = dataclasses.replace(opened.manifest, eos_ids=(end,), geometry=geometry)
    model = Model(opened.folder, manifest, opened.graph, chat_template=None, prefix_cache=2**24)
    draw = np.random.default_rng(1)

    def text(length: int) -> list[int]:
        return [*draw.integers(9, 29, length).tolist(), end]

    def reused(messages: list[int]) -> float:
        prompt = [*messages, assistant, think]
        found = model.generate(prompt, max_new_tokens=3, temperature=0, ignore_eos=True)
        assert list(found.token_ids) == tiny.greedy(prompt, 3)
        return found.stats.reused_tokens / len(prompt)

    system = text(400)
    chats = [[*system, *text(10)], [*system, *text(9)]]
    assert reused(chats[0]) == 0
    assert reused(chats[1]) > 0.95
    for _ in range(5):
        for chat in chats:
            chat += [assistant, *text(3), *text(6)]
            assert reused(chat) > 0.95
    assert reused([*system, *text(9)]) > 0.95


def filled(story: Model, store: PrefixStore, seed: int, length: int) -> Decoder:
    decoder = story.new_context()
    prefill(decoder, np.random.default_rng(seed).integers(2, story.manifest.geometry.vocab_size, length).tolist())
    store.keep(decoder, len(decoder.token_ids[0]))
    return decoder


def test_bytes_are_bounded_and_the_least_recently_used_goes_first(story: Model) -> None:
    size = story.new_context().bytes_of(100)
    store = PrefixStore(3 * size)
    texts = [filled(story, store, seed, 100).token_ids[0] for seed in range(3)]
    assert store.held_bytes == 3 * size
    assert store.find(texts[0], 98, OWN)[1] == 98  # used last now
    texts.append(filled(story, store, 3, 100).token_ids[0])
    assert [store.find(text, 98, OWN)[1] for text in texts] == [98, 0, 98, 98]
    assert store.held_bytes == 3 * size
    filled(story, store, 4, 400)  # larger than the store
    assert store.held_bytes == 3 * size
    store.clear()
    assert (store.held_bytes, store.find(texts[0], 98, OWN)) == (0, (None, 0))


def test_kept_prompts_leave_when_a_text_needs_their_memory(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 2**33
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: free)
    model = Model(story.folder, story.manifest, story.graph, chat_template=None)
    assert model.generator.prefixes.size_bytes == free // 8
    model.generate(BEGIN, max_new_tokens=1)
    monkeypatch.setattr(memory_plan, "SMALL", 0)
    model.generate("A", max_new_tokens=1)
    assert model.generator.prefixes.held_bytes
    free = 0
    with pytest.raises(PromptError, match="free; shorten the text"):
        model.generate("A", max_new_tokens=1)
    assert not model.generator.prefixes.held_bytes
    assert Model(story.folder, story.manifest, story.graph, chat_template=None).generator.prefixes.size_bytes == 0
    monkeypatch.undo()
    assert Model(story.folder, story.manifest, story.graph, chat_template=None).generator.prefixes.size_bytes >= 2**28


def test_a_longer_text_takes_the_place_of_its_beginning_and_short_ones_are_left_out(story: Model) -> None:
    store = PrefixStore(2**26)
    for length in (SHORTEST - 1, 50, 120, 80):
        filled(story, store, 7, length)
    assert store.held_bytes == story.new_context().bytes_of(120)


def test_rows_of_a_list_share_their_beginning(mindful: Model, forgetful: Model) -> None:
    prompts = [BEGIN + end for end in ENDS]
    found = mindful.generate(prompts, max_new_tokens=10, seed=1)
    assert [each.text for each in found] == [each.text for each in forgetful.generate(prompts, max_new_tokens=10, seed=1)]
    assert found[0].stats.reused_tokens == 0
    assert min(each.stats.reused_tokens for each in found[1:]) >= 20


def test_the_number_of_bytes_is_checked() -> None:
    with pytest.raises(OptionError, match="prefix_cache should be"):
        onnx_textgen.load(prefix_cache=-1)
