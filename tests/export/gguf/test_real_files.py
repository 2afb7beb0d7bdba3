"""A trained model's GGUF file with K-quants: its settings are known, its tokenizer is whole, and its calls follow their grammar."""

from __future__ import annotations

import warnings
from typing import Any

import jsonschema
import pytest

from onnx_textgen.answers.answer_reader import AnswerReader
from onnx_textgen.answers.tools import Tool
from onnx_textgen.chat.call_grammar import grammar_of_calls
from onnx_textgen.chat.chat_format import ChatFormat
from onnx_textgen.sampling.grammar import Rules
from onnx_textgen.text.tokenizer import TextTokenizer
from onnx_textgen_export.tracing.opening import open_source
from support.qwen_coder import qwen_coder_file
from support.random_calls import random_text

pytestmark = pytest.mark.slow
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"]}
TOOLS = [Tool("look", parameters=CITY), Tool("stop")]


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read GGUF
        return open_source(qwen_coder_file(tmp_path_factory.mktemp("coder")))


@pytest.fixture(scope="module")
def chats(coder: Any) -> ChatFormat:
    tokenizer = TextTokenizer(coder.assets.tokenizer.to_str(), eos_ids=coder.assets.eos_ids, bos_id=coder.assets.bos_id)
    return ChatFormat(coder.assets.chat_template, tokenizer, bos_token=None, eos_token="<|im_end|>")


def test_the_file_of_a_trained_model_opens(coder: Any) -> None:
    config = coder.module.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (24, 14, 2)
    assert (config.vocab_size, config.rope_parameters["rope_theta"]) == (151_936, 1e6)
    ends = [coder.assets.tokenizer.id_to_token(token_id) for token_id in coder.assets.eos_ids]
    assert "<|im_end|>" in ends


@pytest.mark.parametrize("tools", [TOOLS, TOOLS[:1]], ids=["required", "named"])
def test_a_call_that_is_required_is_read_and_fits_its_schema(chats: ChatFormat, tools: list[Tool]) -> None:
    """The marks of calls are added tokens that are not special."""
    form, tokenizer = chats.calls, chats.tokenizer
    assert form is not None
    rules = Rules(tokenizer, vocab_size=151_936, eos_ids=tokenizer.eos_ids)
    grammar = grammar_of_calls(tools, form, tokenizer.split_at_control_tokens, required=True, parallel=False)
    whole = 0
    for seed in range(4):
        text, complete = random_text(rules, tokenizer, grammar, seed, ends=('"', "}", "</tool_call>"), most=80, bias=8)
        reader = AnswerReader(chats.response, tools=tools, grows=False)
        reader.push(text)
        reader.flush()
        for call in reader.calls:
            jsonschema.validate(call.arguments, CITY if call.name == "look" else {"type": "object", "maxProperties": 0})
        whole += complete
        assert reader.calls or not complete, text
    assert whole
