"""Memory is planned from the graph, and what cannot fit is refused with the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.cancellation import CancelScope
from onnx_textgen.cli import run
from onnx_textgen.errors import OptionError, PromptError
from onnx_textgen.generation.request import Request
from onnx_textgen.generation.scheduler import Scheduler
from onnx_textgen.kv_cache import memory_plan as memory
from support.examples import examples


def test_a_plan_counts_what_the_cache_holds(story: Model) -> None:
    context = story.new_context()
    context.feed(list(range(2, 102)))
    held = context.snapshot().size_bytes
    assert story.memory(100).total_bytes == held == 100 * story.memory().bytes_per_token
    assert story.memory(100, batch=3).total_bytes == 3 * held
    assert story.memory().tokens == 512
    for wrong in ({"tokens": 513}, {"tokens": -1}, {"batch": 0}):
        with pytest.raises(OptionError):
            story.memory(**wrong)


def test_a_text_that_cannot_fit_is_refused_with_the_numbers(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "available_bytes", lambda: 300_000)
    with pytest.raises(
        PromptError, match=r"of 501 tokens take 0.0 GB \(3,072 bytes each\) and 0.0 GB of memory are free; shorten"
    ) as caught:
        story.generate([5], max_new_tokens=500)
    assert "\n" not in str(caught.value)
    assert story.generate([5], max_new_tokens=5, temperature=0).token_ids


@pytest.mark.parametrize("several", ["num_beams", "num_return_sequences", "best_of"])
def test_texts_that_cannot_fit_together_are_refused_with_the_numbers(
    story: Model, several: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "available_bytes", lambda: story.memory(7, batch=4).total_bytes)
    options = {"max_new_tokens": 6, several: 4}
    assert len(story.generate([5], **options).token_ids) <= 6
    for more in ({"max_new_tokens": 7}, {several: 5}):
        with pytest.raises(PromptError, match=r"of . texts of . tokens .* free; .*, or ask for fewer texts"):
            story.generate([5], **{**options, **more})


OPTIONS = {"seed": 3, "ignore_eos": True}


def held_bytes(engine: Scheduler) -> int:
    return sum(map(engine.decoder.bytes_of, engine.decoder.cache.lengths)) if engine.decoder is not None else 0


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9), more=st.integers(0, 60))
@examples(25)
def test_texts_go_on_together_as_far_as_memory_reaches_and_are_those_they_are_alone(
    exact: Model, lengths: list[int], more: int
) -> None:
    """Memory is that of so many tokens `more` than the longest text has alone."""
    model = Model(exact.folder, exact.manifest, exact.graph, chat_template=None, prefix_cache=0)
    used, most = model.generator.engine.scheduler, 2 + max(lengths) + more
    configs = [model.generator.config({**OPTIONS, "max_new_tokens": length}) for length in lengths]
    requests = [Request(model.generator.begin([5, 9], config), CancelScope(), streams=False) for config in configs]
    taken = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory, "SMALL", 0)
        patched.setattr(memory, "available_bytes", lambda: model.memory(most).total_bytes - held_bytes(used))
        for request in requests:
            used.submit(request)
        while used.rows or used.queue:
            used.step()
            taken.append(len(used.rows) * max((each.continuation.most_tokens for each in used.rows), default=0))
    assert max(taken) <= most
    for request, length in zip(requests, lengths, strict=True):
        want = exact.generate([5, 9], **OPTIONS, max_new_tokens=length)
        assert request.continuation.result().token_ids == want.token_ids


def test_info_plans_for_a_context_and_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "story", "--context", "100", "--batch", "8"]) == 0
    assert "for 8 texts of 100 tokens" in " ".join(capsys.readouterr().out.split())
    assert onnx_textgen.load(threads=1, device="cpu").memory(100, 8).total_bytes == 800 * 3072
