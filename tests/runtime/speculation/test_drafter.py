"""Guessed tokens save runs of the model and change nothing of the text."""

import pytest

pytest.importorskip("onnx")

from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.errors import OptionError
from onnx_textgen.speculation.drafter import best_length
from onnx_textgen.speculation.prompt_lookup import PromptLookup
from support.cache_graphs import GRAPHS
from support.examples import examples

DRAFT = {"prompt_lookup_num_tokens": 8}
PHRASE = [7, 30, 41, 9, 12, 77, 5, 64]
PROMPTS = [PHRASE * 3, [*PHRASE, 3, *PHRASE[:4]], [5], list(range(3, 60)), [9, 9, 9, 9]]
FAST = {"draft_verification": "fast"}
CHOOSING = [
    {"temperature": 0},
    {"temperature": 0.4, "seed": 3},
    {"temperature": 1.0, "top_k": 20, "seed": 5},
    {"repetition_penalty": 1.3, "seed": 1},
]


def drafts_of(model: Model) -> dict:
    """Options to guess by: exactly where a graph can, else fast, which in float32 tells none of these texts from its exact form."""
    return DRAFT if model.generator.verification.verifier() else DRAFT | FAST


@pytest.mark.parametrize("options", CHOOSING)
def test_texts_are_those_without_drafts(exact: Model, options: dict) -> None:
    drafted, options = 0, {"max_new_tokens": 60, "ignore_eos": True, **options}
    for prompt in PROMPTS:
        plain, found = exact.generate(prompt, **options), exact.generate(prompt, **options, **drafts_of(exact))
        streamed = [i for chunk in exact.stream(prompt, **options, **drafts_of(exact)) for i in chunk.token_ids]
        assert found.token_ids == plain.token_ids == tuple(streamed)
        assert plain.stats.drafted_tokens == 0
        assert 0 <= found.stats.accepted_tokens <= found.stats.drafted_tokens
        drafted += found.stats.drafted_tokens
    assert drafted > 0


def counted(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the runs of the graph from now on."""
    runs, real = [0], type(model.graph.ort).run_with_iobinding

    def run(*given: object) -> object:
        runs[0] += 1
        return real(*given)

    monkeypatch.setattr(type(model.graph.ort), "run_with_iobinding", run)
    return runs


def test_a_text_that_repeats_takes_fewer_runs(exact: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of one token that is made far likelier than all others."""
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, prefix_cache=0)
    drafts, runs = drafts_of(model), counted(model, monkeypatch)
    options = {"max_new_tokens": 120, "temperature": 0, "logit_bias": {7: 100}}
    plain = model.generate(PHRASE, **options)
    without, runs[0] = runs[0], 0
    found = model.generate(PHRASE, **options, **drafts)
    assert found.token_ids == plain.token_ids
    assert without == 120
    assert runs[0] < 25
    assert found.stats.accepted_tokens == found.stats.drafted_tokens
    assert runs[0] == 120 - found.stats.accepted_tokens


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_cache_gives_the_same_text(kind: str, tmp_path) -> None:
    tiny = GRAPHS[kind]
    model = onnx_textgen.load(tiny.package(tmp_path), threads=1, device="cpu")
    for prompt in ([5, 9, 1, 5, 9, 1, 5], [3], [7, 11, 2, 4, 8, 7, 11]):
        assert list(model.generate(prompt, max_new_tokens=40, temperature=0, **DRAFT).token_ids) == tiny.greedy(prompt, 40)
        found = model.generate(prompt, max_new_tokens=40, temperature=0, **DRAFT, **FAST)
        assert list(found.token_ids) == tiny.greedy(prompt, 40)
        if any(tensor.length_axis is None for tensor in model.generator.opened.cache_tensors):
            assert found.stats.drafted_tokens == 0, "a state cannot be taken back"


def test_drafts_go_with_rules_stops_sessions_shifts_and_other_callers(exact: Model) -> None:
    pytest.importorskip("llguidance")
    for options in (
        {"regex": "(ab|cd){3,9}x"},
        {"stop": ["a"], "temperature": 1.1},
        {"loop_guard": "stop"},
        {"context_limit": "shift", "ignore_eos": True},
        {"logprobs": 2},
    ):
        size = 200 if "context_limit" in options else 50
        plain = exact.generate(PHRASE * 2, max_new_tokens=size, seed=2, **options)
        found = exact.generate(PHRASE * 2, max_new_tokens=size, seed=2, **options, **drafts_of(exact))
        assert (found.text, found.token_ids, found.finish_reason) == (plain.text, plain.token_ids, plain.finish_reason)
    session = exact.session()
    session.append(PHRASE * 2)
    for turn in range(3):
        ids = list(session.token_ids)
        found = session.generate(max_new_tokens=20, seed=turn, ignore_eos=True, **drafts_of(exact))
        assert found.token_ids == exact.generate(ids, max_new_tokens=20, seed=turn, ignore_eos=True).token_ids
        kept = session.context.snapshot.token_ids
        assert len(kept) >= len(ids) - 1 and kept == session.token_ids[: len(kept)]
        session.append([7, 30])
    prompts = [PHRASE * 2, [9, 8], PHRASE]
    plain = exact.generate(prompts, max_new_tokens=40, seed=1, ignore_eos=True)
    found = exact.generate(prompts, max_new_tokens=40, seed=1, ignore_eos=True, **drafts_of(exact))
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]


def test_later_calls_do_not_notice(story: Model) -> None:
    """What a drafted text leaves for later prompts has the bits of any prompt; int8 would show others."""
    text = "The dog ran to the park. The dog ran to the"
    model = onnx_textgen.load(threads=1, device="cpu", exact_history=True)
    alone = onnx_textgen.load(threads=1, device="cpu", prefix_cache=0)
    for seed in range(6):
        drafted = model.generate(text, max_new_tokens=30, seed=seed, **DRAFT)
        prompt = text + drafted.text + " Then"
        assert (
            model.generate(prompt, max_new_tokens=20, seed=seed).text == alone.generate(prompt, max_new_tokens=20, seed=seed).text
        )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 6), st.integers(1, 4), st.data())
@examples(60)
def test_a_guess_is_what_followed_two_tokens_or_more_the_last_time(
    ids: list[int], most: int, longest: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(ids)))
    drafter = PromptLookup(ids[:cut], most, longest)
    for end in range(cut, len(ids) + 1):
        draft = drafter.propose(ids[cut:end], 3, CancelScope())
        assert len(draft) <= min(most, 3)
        if draft:
            text = ids[:end]
            places = {
                size: [i + size for i in range(end - size) if text[i : i + size] == text[end - size :]]
                for size in range(1, min(longest, end) + 1)
            }
            best = max((size for size, found in places.items() if found), default=0)
            copies = [(text[place:] * len(draft))[: len(draft)] for place in range(end)]
            assert draft in ([copies[places[best][-1]]] if best > 1 else copies)
        drafter.record_accepted(data.draw(st.integers(0, len(draft))))


EDITS = {"exchanged": ([*range(20), 99, *range(21, 64)], 1), "left out": ([*range(20), *range(21, 64)], 1)}
EDITS["put in"] = ([*range(20), 99, *range(20, 64)], 2)


@pytest.mark.parametrize("edit", EDITS)
def test_a_copy_goes_on_behind_an_edit(edit: str) -> None:
    """Only the guesses at the edit itself are wrong, and no token goes without a guess."""
    answer, most_wrong = EDITS[edit]
    drafter, told, wrong = PromptLookup(range(64), 8, 3), 2, 0
    while told < len(answer) - 1:
        draft = drafter.propose(answer[:told], len(answer) - told - 1, CancelScope())
        assert draft
        right = next((place for place, token in enumerate(draft) if token != answer[told + place]), len(draft))
        drafter.record_accepted(right)
        wrong += right < len(draft)
        told += right + 1
    assert wrong == most_wrong


def test_guesses_that_are_wrong_are_made_less_and_less_often() -> None:
    drafter, text, proposals = PromptLookup([1, 2] * 5, 8, 2), list[int](), 0
    for _ in range(1000):
        text += [1, 2]
        if drafter.propose(text, 50, CancelScope()):
            proposals += 1
            drafter.record_accepted(0)
    assert 5 < proposals < 30
    assert drafter.accepted == 0


def test_guesses_that_are_right_are_made_more_and_more() -> None:
    drafter, text = PromptLookup([1, 2, 3] * 5, 16, 3), list[int]()
    lengths = []
    for _ in range(12):
        draft = drafter.propose(text, 50, CancelScope())
        lengths.append(len(draft))
        drafter.record_accepted(len(draft))
        text += ([1, 2, 3] * 20)[len(text) % 3 :][: len(draft) + 1]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 16


def test_guesses_that_can_never_pay_are_not_made(exact: Model) -> None:
    model = onnx_textgen.load(exact.folder, threads=1, device="cpu", assistant_model=exact)  # as slow as the model itself
    assert model.generate(PHRASE, max_new_tokens=50, assistant_confidence_threshold=1e-9).stats.drafted_tokens == 0


@given(st.floats(0, 0.999), st.floats(0.01, 2), st.integers(1, 64))
def test_the_length_is_the_one_that_pays_most(chance: float, cost: float, most: int) -> None:
    def gained(length: int) -> float:
        return sum(chance**i for i in range(length + 1)) / (1 + cost * length)

    found = best_length(chance, cost, most)
    assert gained(found) == pytest.approx(max(map(gained, range(most + 1))))
    assert (found > 0) == (chance > cost + 1e-12) or chance == pytest.approx(cost)


def test_options_that_cannot_take_effect_are_refused(exact: Model) -> None:
    for wrong in ({"num_beams": 2}, {"num_return_sequences": 2}, {"best_of": 3}):
        with pytest.raises(OptionError, match="prompt_lookup_num_tokens"):
            exact.generate([5], **wrong, **DRAFT)
    with pytest.raises(OptionError, match="max_matching_ngram_size cannot take effect without prompt_lookup_num_tokens"):
        exact.generate([5], max_matching_ngram_size=2)
