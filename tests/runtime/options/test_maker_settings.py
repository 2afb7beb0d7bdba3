"""What makers write about generation, as the defaults of our options."""

from __future__ import annotations

import pytest

from onnx_textgen.options.maker_settings import CHOOSING, SAMPLING, read_maker_settings

GREEDY = {"temperature": 0}
BEAMS = {"temperature": 0, "num_beams": 4}
TABLE = [
    ({}, {}, {}),
    ({"eos_token_id": 2}, GREEDY, {}),
    ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, GREEDY, {}),
    ({"temperature": 0.6}, GREEDY, {}),
    ({"do_sample": True}, {"temperature": 1, "top_k": 50}, {}),
    (
        {"do_sample": "true", "temperature": "0.6", "top_k": 20.0, "top_p": "0.95"},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {},
    ),
    ({"do_sample": True, "temperature": 0, "top_k": 0}, GREEDY, {}),
    ({"do_sample": True, "temperature": -1}, {"temperature": 0, "top_k": 50}, {"temperature": -1}),
    ({"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}, BEAMS | {"length_penalty": 2, "early_stopping": True}, {}),
    ({"num_beams": 4, "early_stopping": "never"}, BEAMS | {"early_stopping": "never"}, {}),
    ({"length_penalty": 2.0, "early_stopping": True}, GREEDY, {}),
    ({"num_beams": 4, "do_sample": True, "top_k": 0}, {"temperature": 1}, {"num_beams": 4}),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, BEAMS, {"num_beam_groups": 2, "diversity_penalty": 0.5}),
    ({"no_repeat_ngram_size": 3, "repetition_penalty": 1.1}, GREEDY | {"no_repeat_ngram_size": 3, "repetition_penalty": 1.1}, {}),
    ({"repetition_penalty": 0.0}, GREEDY, {"repetition_penalty": 0.0}),
    ({"min_length": 5, "max_length": 20}, GREEDY, {"min_length": 5}),
    ({"min_new_tokens": 5, "max_new_tokens": 40}, GREEDY | {"max_new_tokens": 40, "min_new_tokens": 5}, {}),
    ({"min_new_tokens": 300}, GREEDY | {"min_new_tokens": 300}, {}),
    ({"suppress_tokens": [7, 9], "bad_words_ids": [[3], [4, 5], [2]], "eos_token_id": [2, 8]}, None, {}),
    ({"stop_strings": ["</s>"]}, GREEDY | {"stop": ["</s>"]}, {}),
    ({"begin_suppress_tokens": [220]}, GREEDY, {"begin_suppress_tokens": [220]}),
    ({"typical_p": 1.0, "top_h": 1, "guidance_scale": 1.0, "num_return_sequences": 1, "begin_suppress_tokens": []}, GREEDY, {}),
]


@pytest.mark.parametrize(("written", "options", "left_out"), TABLE, ids=str)
def test_a_makers_settings_are_obeyed_or_named(written, options, left_out):
    found = read_maker_settings(written)
    want = GREEDY | {"bad_words_ids": ((3,), (4, 5), (7,), (9,))} if options is None else options
    assert (found.options, found.left_out) == (want, left_out)


@pytest.mark.parametrize(
    "name", [name for name in CHOOSING if name not in {"do_sample", *SAMPLING, "length_penalty", "early_stopping"}]
)
def test_no_setting_that_changes_a_text_is_dropped_without_a_word(name):
    found = read_maker_settings({name: 2})
    assert found.options.keys() - {"temperature"} | found.left_out.keys() == {name}


def test_lengths_of_an_encoder_decoder_count_the_ids_that_its_texts_begin_with():
    settings = {"max_length": 142, "min_length": 56, "bad_words_ids": [[9], [1, 2]]}
    found = read_maker_settings(settings, start_count=2, suppressed=[9]).options
    assert found == {"temperature": 0, "max_new_tokens": 140, "min_new_tokens": 54, "bad_words_ids": ((1, 2),)}
