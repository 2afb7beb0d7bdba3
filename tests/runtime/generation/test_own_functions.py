"""A caller's own logits processor and stopping criterion: in their places, in lists, streams, searches and beside other callers."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from onnx_textgen.errors import OptionError

PROMPT = "Once upon a time"
DRAWN = {"max_new_tokens": 20, "temperature": 1.0, "seed": 5}


def rule_out(*banned):
    def processor(token_ids, logits):
        logits[list(banned)] = -np.inf
        return logits

    return processor


def penalise_repetition(token_ids, logits):
    """As the option does, with 1.3."""
    seen = np.unique(token_ids)
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
    return logits


@pytest.mark.parametrize("options", [DRAWN, {"max_new_tokens": 20, "temperature": 0}, {"max_new_tokens": 12, "num_beams": 3}])
def test_a_processor_that_does_what_an_option_does_gives_its_text(story, options):
    banned = story.generate(PROMPT, **options).token_ids[0]
    want = story.generate(PROMPT, bad_words_ids=[[banned]], **options)
    assert story.generate(PROMPT, logits_processor=rule_out(banned), **options).token_ids == want.token_ids
    want = story.generate(PROMPT, repetition_penalty=1.3, **options)
    assert story.generate(PROMPT, logits_processor=penalise_repetition, **options).token_ids == want.token_ids


def test_a_processor_sees_the_prompt_and_the_text_so_far_and_float32_logits(story):
    seen = []

    def look(token_ids, logits):
        seen.append((tuple(token_ids), logits.dtype, logits.shape))
        return logits

    found = story.generate(PROMPT, logits_processor=look, **DRAWN)
    assert found.token_ids == story.generate(PROMPT, **DRAWN).token_ids
    ids = found.prompt_ids + found.token_ids
    assert [each for each, _, _ in seen] == [ids[:length] for length in range(len(found.prompt_ids), len(ids))]
    assert {(dtype, shape) for _, dtype, shape in seen} == {(np.dtype(np.float32), (story.manifest.geometry.vocab_size,))}


def test_what_a_rule_forbids_stays_forbidden(story):
    pytest.importorskip("llguidance")
    found = story.generate("Is it so? ", regex="(yes|no)", logits_processor=lambda ids, logits: np.zeros_like(logits), seed=1)
    assert found.text in ("yes", "no")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda ids, logits: None, "should return numbers, found None|found the shape"),
        (lambda ids, logits: logits[:7], r"should return 4,096 logits, one for each token; found the shape \[7\]"),
        (lambda ids, logits: "text", "should return numbers, found 'text'"),
        (lambda ids, logits: logits * np.nan, "returned NaN"),
        (lambda ids, logits: np.full_like(logits, -np.inf), "nothing is left to choose from"),
    ],
)
def test_what_is_no_logits_is_said_in_a_line(story, given, message):
    with pytest.raises(OptionError, match=message):
        story.generate(PROMPT, logits_processor=given, **DRAWN)


@pytest.mark.parametrize("name", ["logits_processor", "stopping_criterion"])
def test_what_is_no_function_is_refused(story, name):
    with pytest.raises(OptionError, match=f"{name} should be a function, found 5"):
        story.generate(PROMPT, **{name: 5})


def test_an_error_of_the_function_is_the_callers_own_and_nobody_elses(story):
    want, begun = story.generate(PROMPT, **DRAWN), threading.Barrier(2)

    def fail(token_ids, logits):
        if len(token_ids) > 12:
            raise ZeroDivisionError("mine")
        return logits

    def write(**more):
        begun.wait(60)
        return story.generate(PROMPT, **more, **DRAWN)

    with ThreadPoolExecutor(2) as pool:
        other, mine = pool.submit(write), pool.submit(write, logits_processor=fail)
        assert isinstance(mine.exception(), ZeroDivisionError)
        assert other.result().token_ids == want.token_ids


@pytest.mark.parametrize("options", [DRAWN, {"max_new_tokens": 20, "temperature": 0}])
def test_a_criterion_ends_the_text_behind_the_token_that_it_is_true_of(story, options):
    whole = story.generate(PROMPT, **options)
    length = len(whole.prompt_ids) + 7
    found = story.generate(PROMPT, stopping_criterion=lambda ids, text: len(ids) == length, **options)
    assert (found.token_ids, found.finish_reason) == (whole.token_ids[:7], "stop")
    assert whole.text.startswith(found.text)


def test_a_criterion_sees_the_text_that_a_stream_has_given(story):
    seen, given = list[str](), list[str]()

    def look(token_ids, text):
        seen.append(text)
        return "." in text

    for chunk in story.stream(PROMPT, stopping_criterion=look, **(DRAWN | {"max_new_tokens": 200})):
        given.append(chunk.text)
    assert seen == list(itertools.accumulate(given))
    assert "." in seen[-1]
    assert not any("." in text for text in seen[:-1])


def test_a_criterion_is_each_texts_own_in_a_list_and_among_several(story):
    prompts = [PROMPT, "The dog"]
    short = lambda ids, text: text.count(" ") >= 4  # noqa: E731
    together = story.generate(prompts, stopping_criterion=short, **DRAWN)
    assert [each.token_ids for each in together] == [
        story.generate(each, stopping_criterion=short, **DRAWN).token_ids for each in prompts
    ]
    several = story.generate(PROMPT, stopping_criterion=short, num_return_sequences=3, **DRAWN)
    assert {text.finish_reason for text in several.sequences} == {"stop"}
    assert all(text.text.count(" ") == 4 for text in several.sequences)


def test_a_criterion_ends_beams(story):
    found = story.generate(PROMPT, num_beams=3, max_new_tokens=40, stopping_criterion=lambda ids, text: "," in text)
    assert found.finish_reason in ("stop", "eos", "length")
    assert found.text.count(",") <= 1
    if found.finish_reason == "stop":
        assert found.text.endswith(",")
