"""An encoder-decoder through every call: the trained package `numbers` writes numbers as English words."""

from __future__ import annotations

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.numbers_in_words import in_words

import onnx_textgen
from onnx_textgen.encoders.encoder import Encoded
from onnx_textgen.errors import OptionError, PackageError, PromptError
from onnx_textgen.package.integrity import check_files
from support.examples import examples

FOLDER = Path(__file__).parents[2] / "packages" / "numbers"
NUMBERS = st.integers(0, 999_999)


@pytest.fixture(scope="module")
def numbers() -> onnx_textgen.Model:
    """The package, open on one thread."""
    return onnx_textgen.load(FOLDER, threads=1, device="cpu")


def words(number: int) -> str:
    """What the model was trained to write."""
    return " ".join(in_words(number))


@given(st.lists(NUMBERS, min_size=1, max_size=9))
@examples(40)
def test_sources_of_different_lengths_are_written_together_as_alone(chosen: list[int]) -> None:
    model = onnx_textgen.load(FOLDER, threads=1, device="cpu", batch_size=4)
    together = model.generate([str(number) for number in chosen], temperature=0)
    assert [text.text for text in together] == [words(number) for number in chosen]
    assert {text.finish_reason for text in together} == {"eos"}


@given(NUMBERS, st.integers(2, 5))
@examples(25)
def test_beams_find_the_right_words_too(number: int, beams: int) -> None:
    found = onnx_textgen.load(FOLDER, threads=1, device="cpu").generate(str(number), num_beams=beams, num_return_sequences=2)
    assert found.text == words(number)
    assert len({text.token_ids for text in found.sequences}) == 2


def test_a_stream_gives_the_text_alone_and_counts_the_source(numbers: onnx_textgen.Model) -> None:
    chunks = list(numbers.stream("4071", temperature=0))
    assert "".join(chunk.text for chunk in chunks) == "four thousand and seventy one"
    stats = chunks[-1].stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.generated_tokens, stats.reused_tokens) == (5, 5, 0)


def test_a_result_says_what_was_read_and_how_the_text_began(numbers: onnx_textgen.Model) -> None:
    found = numbers.generate("42", temperature=0)
    assert (found.text, found.prompt_ids) == ("forty two", (0,))
    assert found.source_ids == tuple(numbers.tokenizer.encode("42"))
    assert numbers.generate([list(found.source_ids)], temperature=0)[0].token_ids == found.token_ids


def test_callers_in_threads_and_tasks_share_the_rows(numbers: onnx_textgen.Model) -> None:
    chosen = [7, 70, 777, 123456, 90210]
    with ThreadPoolExecutor(5) as pool:
        found = pool.map(lambda number: numbers.generate(str(number), temperature=0).text, chosen)
    assert list(found) == [words(number) for number in chosen]

    async def both() -> list[str]:
        texts = await asyncio.gather(*(numbers.agenerate(str(number), temperature=0) for number in (12, 345678)))
        return [text.text for text in texts]

    assert asyncio.run(both()) == [words(12), words(345678)]


def test_the_same_seed_gives_the_same_draws_alone_and_in_a_batch(numbers: onnx_textgen.Model) -> None:
    options = {"temperature": 3.0, "seed": 5, "max_new_tokens": 12}
    alone = numbers.generate("123", **options)
    batch = numbers.generate(["99", "123", "1234"], **options)
    assert batch[1].token_ids == alone.token_ids
    drawn = numbers.generate("123", temperature=3.0, seed=5, max_new_tokens=12, num_return_sequences=3)
    assert drawn.sequences[0].token_ids == alone.token_ids
    assert len({text.token_ids for text in drawn.sequences}) > 1


def test_a_source_that_several_rows_have_is_read_once(numbers: onnx_textgen.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read, encoder = list[tuple[int, ...]](), numbers.generator.opened.encoder
    assert encoder is not None
    encode = encoder.encode

    def noting(token_ids: tuple[int, ...], *rest: object) -> Encoded:
        read.append(tuple(token_ids))
        return encode(token_ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "encode", noting)
    numbers.generate("4071", num_beams=4)
    numbers.generate("4071", temperature=1.0, num_return_sequences=4)
    assert len(read) == 2


def test_a_cancelled_call_reads_no_source_and_writes_nothing(numbers: onnx_textgen.Model) -> None:
    cancel = onnx_textgen.Cancellation()
    cancel.cancel()
    found = numbers.generate("4071", cancel=cancel)
    assert (found.text, found.finish_reason) == ("", "cancelled")


def test_a_text_is_scored_after_its_source(numbers: onnx_textgen.Model) -> None:
    right, wrong = (numbers.score(text, source="42") for text in ("forty two", "twenty four"))
    assert right.perplexity < 1.1
    assert wrong.perplexity > 50
    assert right.token_ids == (0, *numbers.tokenizer.encode("forty two"))
    choices = numbers.rank("70", ["seven", "seventy", "seventeen"])
    assert choices[0].text == "seventy"
    assert math.isclose(choices[0].logprob, sum(numbers.score("seventy", source="70").continuation_logprobs), rel_tol=1e-5)


def test_options_of_the_text_concern_the_text_alone(numbers: onnx_textgen.Model) -> None:
    forty = numbers.tokenizer.encode("forty", add_special_tokens=False)
    assert "forty" not in numbers.generate("42", temperature=0, bad_words_ids=[[i] for i in forty]).text
    assert numbers.generate("4040", temperature=0, stop="thousand").text == "four "
    assert numbers.generate("22222", temperature=0, no_repeat_ngram_size=1).text != words(22222)


def test_wrong_use_is_refused_in_a_line(numbers: onnx_textgen.Model, story: onnx_textgen.Model) -> None:
    for call, error, words_of_it in (
        (numbers.session, OptionError, "keeps no session"),
        (lambda: numbers.chat([{"role": "user", "content": "Hello"}]), OptionError, "answers no chat"),
        (lambda: numbers.generate(""), PromptError, "empty"),
        (lambda: numbers.generate("1" * 200), PromptError, "the source has 201 tokens; this model reads 128"),
        (lambda: numbers.generate("1", src_lang="de"), OptionError, "does not have"),
        (lambda: numbers.score("forty two"), OptionError, "source of the text"),
        (lambda: numbers.score("forty", continuation="two", source="42"), OptionError, "for decoders"),
        (lambda: numbers.new_context().feed([0]), PromptError, "needs a source"),
        (lambda: story.score("The cat", source="42"), OptionError, "for encoder-decoders"),
        (lambda: story.generate("The cat", tgt_lang="de"), OptionError, "for encoder-decoders"),
    ):
        with pytest.raises(error, match=words_of_it) as refused:  # type: ignore[call-overload]
            call()
        assert "\n" not in str(refused.value)


def test_a_package_without_its_encoder_is_refused(tmp_path: Path) -> None:
    value = json.loads((FOLDER / "manifest.json").read_text(encoding="utf-8"))
    del value["files"]["encoder_model.onnx"], value["sha256"]
    with pytest.raises(PackageError, match=r"lists no encoder_model\.onnx"):
        onnx_textgen.package.manifest.manifest_from_json(value)
    value["encoder"]["start_ids"] = []
    with pytest.raises(PackageError, match="start_ids"):
        onnx_textgen.package.manifest.manifest_from_json(value)


def test_the_plan_of_memory_counts_the_source(numbers: onnx_textgen.Model) -> None:
    full, short = numbers.memory(), numbers.memory(10, source_tokens=8)
    assert full.state_bytes == 2 * 128 * 768
    assert short.state_bytes == 2 * 8 * 768
    check_files(FOLDER, numbers.manifest)


def test_a_closed_model_says_so(tmp_path: Path) -> None:
    model = onnx_textgen.load(FOLDER, threads=1)
    model.close()
    with pytest.raises(onnx_textgen.errors.ModelError, match="closed"):
        model.generate("42")
