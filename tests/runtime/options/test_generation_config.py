"""The options of a call: their limits, their defaults, and what is said about a wrong one."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.options.generation_config import OPTION_NAMES, GenerationConfig
from onnx_textgen.options.merging import make_generation_config
from onnx_textgen.options.other_names import NAMES_ELSEWHERE, REMOVED

NAN, INF = float("nan"), float("inf")


def is_wrong(name, value):
    """Some options take truth values, and some take text."""
    if isinstance(value, bool):
        return name not in ("early_stopping", "ignore_eos", "strict_schema", "logprobs")
    return not (
        isinstance(value, str) and name in ("stop", "dry_sequence_breakers", "regex", "grammar", "adapter", "src_lang", "tgt_lang")
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 1),
        ("max_new_tokens", 10**30),
        ("temperature", 0),
        ("temperature", 100),
        ("top_k", 0),
        ("top_k", 10**9),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("min_p", 0),
        ("min_p", 1.0),
        ("seed", None),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("stop", ()),
        ("stop", ("x" * 256,) * 16),
        ("stop", ("\n",)),
    ],
)
def test_the_ends_of_every_range_are_accepted(name, value):
    assert getattr(GenerationConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("max_new_tokens", 1.0),
        ("temperature", -0.1),
        ("temperature", 100.1),
        pytest.param("temperature", 10**400, id="longer than a float holds"),
        ("temperature", 1j),
        ("top_k", -1),
        ("top_k", 5.0),
        ("top_p", 0),
        ("top_p", 1.01),
        pytest.param("top_p", Fraction(1, 10**400), id="zero once it is a float"),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("seed", -1),
        ("seed", 2**63),
        pytest.param("seed", 10**6000, id="longer than Python prints"),
        ("stop", ("x",) * 17),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
        ("stop", (b"x",)),
        ("stop", 5),
        *[(name, wrong) for name in ("temperature", "top_p", "min_p") for wrong in (NAN, INF, -INF, None)],
        *[
            (name, wrong)
            for name in OPTION_NAMES
            for wrong in (True, "0.7", [[]], np.bool_(True), np.ones(2))
            if is_wrong(name, wrong)
        ],
    ],
)
def test_whatever_is_out_of_range_or_of_another_type_is_one_line_that_names_the_option(name, value):
    with pytest.raises(OptionError) as caught:
        GenerationConfig(**{name: value})
    message = str(caught.value)
    assert name in message and "should" in message and "found" in message
    assert "\n" not in message and len(message) < 200


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.fractions(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.lists(st.one_of(st.text(), st.integers()), max_size=20),
    st.tuples(st.text()),
)


@given(st.dictionaries(st.one_of(st.sampled_from(OPTION_NAMES), st.text()), ANYTHING))
def test_any_options_give_a_checked_configuration_or_an_option_error(options):
    try:
        config = make_generation_config({}, options)
    except OptionError as error:
        assert str(error).count("\n") == 0
        return
    assert type(config.max_new_tokens) is int and config.max_new_tokens >= 1
    assert type(config.temperature) is float and 0 <= config.temperature <= 100
    assert type(config.top_k) is int and config.top_k >= 0
    assert type(config.top_p) is float and 0 < config.top_p <= 1
    assert type(config.min_p) is float and 0 <= config.min_p <= 1
    assert config.seed is None or 0 <= config.seed < 2**63
    assert type(config.stop) is tuple and all(1 <= len(text) <= 256 for text in config.stop)


def test_numbers_of_other_kinds_become_pythons_own():
    config = GenerationConfig(max_new_tokens=np.int64(5), temperature=np.float32(0.5), top_p=Fraction(1, 2), min_p=0, stop=["a"])
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")
    assert [type(getattr(config, name)) for name in names] == [int, float, int, float, float, type(None), tuple]
    assert (config.max_new_tokens, config.temperature, config.top_p) == (5, 0.5, 0.5)


def test_a_configuration_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationConfig().top_k = 5


def test_what_the_caller_gives_wins_over_the_package_and_the_package_over_the_class():
    config = make_generation_config({"temperature": 0.6, "top_k": 20}, {"top_k": 5, "seed": 7})
    assert config == GenerationConfig(temperature=0.6, top_k=5, seed=7)
    assert config.top_p == GenerationConfig().top_p


def test_none_means_not_given():
    nothing = dict.fromkeys(OPTION_NAMES)
    assert make_generation_config({}, nothing) == GenerationConfig()
    assert make_generation_config({"top_k": 20, "min_p": 0.1}, nothing) == GenerationConfig(top_k=20, min_p=0.1)


def test_zero_is_given():
    assert make_generation_config({"temperature": 0.6, "top_k": 20}, {"temperature": 0, "top_k": 0}).temperature == 0


def test_one_stop_string_stands_for_a_tuple_of_it():
    assert make_generation_config({}, {"stop": "END"}).stop == ("END",)
    assert make_generation_config({}, {"stop": ["a", "b"]}).stop == ("a", "b")


@pytest.mark.parametrize(("wrong", "closest"), [("topk", "top_k"), ("temprature", "temperature"), ("stops", "stop")])
def test_an_unknown_option_is_named_with_the_closest_that_exists(wrong, closest):
    with pytest.raises(OptionError, match=rf"there is no option '{wrong}'; did you mean {closest}\?"):
        make_generation_config({}, {wrong: 1})


@pytest.mark.parametrize("name", [name for name in NAMES_ELSEWHERE if not name.startswith("stream")])
def test_a_name_of_another_library_is_answered_with_the_option_here(name):
    with pytest.raises(OptionError, match=rf"there is no option '{name}'; take \w+") as error:
        make_generation_config({}, {name: 1})
    assert str(error.value).split("; take ")[1].split(",")[0].split(":")[0] in OPTION_NAMES


def test_names_of_version_0_2_warn_or_say_what_to_do_instead():
    with pytest.warns(DeprecationWarning, match="bad_words_ids"):
        config = make_generation_config({}, {"suppress_tokens": [5, 7], "bad_words_ids": [[1, 2]]})
    assert config.bad_words_ids == ((1, 2), (5,), (7,))


@pytest.mark.parametrize("name", REMOVED)
def test_an_option_that_was_removed_is_refused_unless_it_did_nothing(name):
    neutral, instead = REMOVED[name]
    with pytest.warns(DeprecationWarning, match=f"{name} was removed: leave it out"):
        assert make_generation_config({}, {name: 0.3 if neutral is None else neutral}) == GenerationConfig()
    if neutral is not None:
        with pytest.raises(OptionError, match=rf"^{name} was removed in version 0\.3; {instead}$"):
            make_generation_config({}, {name: 2})
    assert make_generation_config({name: 2, "top_k": 5}, {name: None}) == GenerationConfig(top_k=5), "of a package: left out"


@pytest.mark.parametrize("truncation", [{"top_k": 5}, {"top_p": 0.5, "min_p": 0.1}])
def test_truncation_at_temperature_0_changes_nothing_and_is_no_error(truncation):
    assert make_generation_config({}, {"temperature": 0, **truncation}).temperature == 0


def test_logprobs_may_be_a_switch():
    assert [make_generation_config({}, {"logprobs": value}).logprobs for value in (True, False, 0, 3)] == [0, None, 0, 3]


def test_an_unknown_option_like_no_other_is_answered_with_all_of_them():
    with pytest.raises(OptionError, match=r"'zzz'; the options are max_new_tokens, min_new_tokens, temperature, top_k"):
        make_generation_config({}, {"zzz": None})


@pytest.mark.parametrize("defaults", [{"temperature": NAN}, {"top_p": 0}, {"top_k": 0.5}, {"zebra": 1.1}])
def test_an_unusable_default_is_the_packages_fault_even_where_the_caller_overrides_it(defaults):
    with pytest.raises(PackageError, match=r"unusable generation default: .*export the model again"):
        make_generation_config(defaults, {"temperature": 0.5, "top_p": 0.5, "top_k": 5})


NO_EFFECT = [
    ({"temperature": 0, "best_of": 3}, "best_of cannot take effect at temperature 0"),
    ({"temperature": 0, "num_return_sequences": 3}, "num_return_sequences cannot take effect at temperature 0"),
    ({"temperature": 0, "loop_guard": "resample"}, 'loop_guard cannot take effect as "resample" at temperature 0'),
    ({"dry_base": 2}, "dry_base cannot take effect without dry_multiplier"),
    ({"length_penalty": 2}, "length_penalty cannot take effect without num_beams above 1"),
    ({"num_beams": 4, "temperature": 0.7}, "temperature cannot take effect with num_beams"),
    ({"num_beams": 4, "top_k": 5}, "top_k cannot take effect with num_beams"),
    ({"num_beams": 4, "context_limit": "shift"}, 'context_limit cannot take effect as "shift" with num_beams'),
    ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences 3 is more than num_beams 2"),
    ({"best_of": 2, "num_return_sequences": 3}, "best_of 2 is less than num_return_sequences 3"),
    ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens 5 is more than max_new_tokens 4"),
    ({"min_new_tokens": 5, "ignore_eos": True}, "min_new_tokens cannot take effect with ignore_eos"),
    ({"regex": "a", "json_schema": {"type": "null"}}, "json_schema and regex exclude each other"),
]


@pytest.mark.parametrize(("options", "message"), NO_EFFECT, ids=str)
def test_an_option_that_cannot_take_effect_is_an_error(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        make_generation_config({}, options)
    assert "\n" not in str(caught.value)


def test_defaults_of_a_package_that_cannot_take_effect_are_passed_over():
    defaults = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "dry_base": 2}
    assert make_generation_config(defaults, {"temperature": 0}).temperature == 0
    assert make_generation_config(defaults, {"num_beams": 4}).num_beams == 4


def test_a_value_that_switches_an_option_off_is_never_an_error():
    off = {"top_k": 0, "top_p": 1, "min_p": 0, "length_penalty": 1, "seed": 3}
    assert make_generation_config({}, {"temperature": 0, **off}).seed == 3
    assert make_generation_config({}, {"num_beams": 2, "temperature": 0, "top_p": 1}).num_beams == 2


def test_a_negative_zero_temperature_is_greedy_too():
    assert GenerationConfig(temperature=-0.0).temperature == 0 and math.isfinite(GenerationConfig(temperature=-0.0).temperature)
