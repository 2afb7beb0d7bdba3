"""Languages of multilingual encoder-decoders, read from tokenizers in the forms of M2M100, NLLB and mBART."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from onnx_textgen.errors import OptionError
from onnx_textgen.text.languages import Languages
from onnx_textgen.text.tokenizer import TextTokenizer

WORDS = ("<s>", "</s>", "<unk>", "a", "house")


def languages(*codes: str, form: str = "", first: str = "") -> Languages:
    """Those of a tokenizer with these language tokens; `form`: its template, which names `first`."""
    vocabulary = {word: index for index, word in enumerate([*WORDS, *codes])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", *codes])
    if form:
        ids = [(token, vocabulary[token]) for token in ("</s>", first)]
        tokenizer.post_processor = processors.TemplateProcessing(single=form.format(first), special_tokens=ids)
    return Languages(TextTokenizer(tokenizer.to_str(), eos_ids=(1,)))


@pytest.mark.parametrize(
    ("codes", "wanted", "form", "expected"),
    [
        (("__en__", "__de__"), "de", "{} $A </s>", [6, 3, 4, 1]),
        (("eng_Latn", "deu_Latn"), "deu_Latn", "{} $A </s>", [6, 3, 4, 1]),
        (("en_XX", "de_DE"), "de_DE", "$A </s> {}", [3, 4, 1, 6]),
    ],
)
def test_the_token_of_the_source_takes_the_place_that_the_tokenizer_gives_it(
    codes: tuple[str, str], wanted: str, form: str, expected: list[int]
) -> None:
    found = languages(*codes, form=form, first=codes[0])
    assert found.source("a house", wanted) == expected
    default = next(iter(found.ids))
    assert found.source("a house", default) == [5 if token_id == 6 else token_id for token_id in expected]


def test_a_language_in_the_text_itself_stays() -> None:
    found = languages("__en__", "__de__", form="{} $A </s>", first="__en__")
    assert found.source("a __en__ house", "de") == [6, 3, 5, 4, 1]


def test_a_text_begins_with_its_language() -> None:
    found = languages("__en__", "__de__", form="{} $A </s>", first="__en__")
    assert found.start([1], "de") == [1, 6]
    assert found.start([1, 5], "de") == [1, 6]
    assert found.start([5], "de") == [6]


def test_what_is_no_language_of_the_model_is_refused_with_what_is() -> None:
    found = languages("__en__", "__de__", form="{} $A </s>", first="__en__")
    with pytest.raises(OptionError, match="src_lang 'eng' is no language of this model; take a code such as en"):
        found.source("a house", "eng")
    with pytest.raises(OptionError, match="does not have"):
        languages().start([1], "de")
    with pytest.raises(OptionError, match="do not name their language"):
        languages("__en__").source("a house", "en")
