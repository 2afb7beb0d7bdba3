"""What happens at the end of the context: the text ends, is refused beforehand, or goes on without its older half."""

import pytest

from onnx_textgen.errors import PromptError
from onnx_textgen.generation.steps import shifted
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill


@pytest.fixture(scope="module")
def prompt(story):
    return story.tokenizer.encode("Once upon a time there was a little dog.") * 42


def test_stop_ends_the_text_at_the_last_token(story, prompt):
    result = story.generate(prompt, max_new_tokens=2000, temperature=0, ignore_eos=True)
    assert result.finish_reason == "context"
    assert len(prompt) + len(result.token_ids) == story.manifest.geometry.context_length


def test_error_refuses_what_may_not_fit_before_anything_is_computed(story, prompt):
    context = story.manifest.geometry.context_length
    with pytest.raises(PromptError, match=f"the prompt has {len(prompt)} tokens; this model takes {context - 100} at most"):
        story.generate(prompt, max_new_tokens=100, context_limit="error")
    assert story.generate(prompt, max_new_tokens=context - len(prompt), context_limit="error", temperature=0).token_ids


def test_shift_goes_on_as_a_fresh_text_from_what_was_left(story, prompt):
    context = story.manifest.geometry.context_length
    new = context - len(prompt) + 60
    result = story.generate(prompt, max_new_tokens=new, temperature=0, ignore_eos=True, context_limit="shift")
    assert result.finish_reason == "length" and len(result.token_ids) == new
    ids = list(prompt) + list(result.token_ids[: context - len(prompt) + 1])
    decoder = Decoder(story.graph, story.manifest.geometry)
    logits = prefill(decoder, shifted(ids))
    never = list(story.manifest.eos_ids)
    for token_id in result.token_ids[context - len(prompt) + 1 :]:
        logits = logits.copy()
        logits[never] = -1e30
        assert int(logits.argmax()) == token_id
        logits = decoder.feed([token_id])[-1]


def test_rows_of_a_list_shift_each_for_itself(story, prompt):
    short, options = prompt[:30], {"max_new_tokens": 90, "temperature": 0, "ignore_eos": True, "context_limit": "shift"}
    alone = [story.generate(each, **options) for each in (prompt, short)]
    together = story.generate([prompt, short], **options)
    assert [len(each.token_ids) for each in together] == [90, 90]
    assert together[1].token_ids == alone[1].token_ids
    assert together[0].token_ids == alone[0].token_ids


def test_what_is_left_is_the_newer_half():
    assert shifted(list(range(8))) == [4, 5, 6, 7]
    assert shifted(list(range(9))) == [5, 6, 7, 8]
