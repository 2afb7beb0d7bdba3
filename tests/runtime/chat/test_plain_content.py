"""What messages contain never becomes a control token: over real chat templates and tokenizers, whoever writes it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from onnx_textgen.chat.plain_content import PlainContent, Rendered
from onnx_textgen.errors import TemplateError
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen.text.tokenizer import TextTokenizer
from support.examples import examples

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
MARKS = re.compile(r"<\|[^|<>]{1,40}\|>|<\uff5c[^\uff5c]{1,40}\uff5c>|</?[a-z_]{1,20}>|\[/?[A-Z_]{2,20}\]")
TEMPLATES = sorted(path.relative_to(SHARED).as_posix() for path in (SHARED / "chat_templates").rglob("*.jinja"))
BASES = ["gpt2", "phi-3-mini", "llama2"]
"""Byte-level tokens, and SentencePiece's with bytes for what is unknown."""
NOT_SPECIAL = re.compile("think|tool|call|response")
needs_data = pytest.mark.skipif(
    not TEMPLATES, reason="needs the test data folder ../shared/data, which is not part of the repository"
)


@functools.cache
def template_of(name: str) -> str:
    return (SHARED / name).read_text(encoding="utf-8")


@functools.cache
def tokenizer_of(base: str, name: str) -> TextTokenizer:
    """A real tokenizer with the marks of a template; those around thinking and calls are added and not special, as in Qwen's."""
    folder = SHARED / "tokenizers" / base
    if base == "gpt2":
        made = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for mark in sorted({*MARKS.findall(template_of(name)), "<s>", "</s>"}):
        made.add_tokens([AddedToken(mark, special=NOT_SPECIAL.search(mark) is None, normalized=False)])
    return TextTokenizer(made.to_str())


def rendered(base: str, name: str, messages: list[dict[str, Any]], **others: Any) -> Rendered:
    """A chat by a template, with its tokenizer's control tokens kept plain."""
    plain = PlainContent(tokenizer_of(base, name), template_of(name), lambda token: "think" in token)
    return plain.rendered(functools.partial(render_chat, template_of(name), bos_token="<s>", eos_token="</s>"), messages, **others)


def control_ids(base: str, name: str, chat: Rendered) -> list[int]:
    """The control tokens in the ids of a chat."""
    tokenizer = tokenizer_of(base, name)
    plain = PlainContent(tokenizer, template_of(name), lambda token: False)
    known = {tokenizer.added_tokens[token] for token in plain.tokens}
    return [token_id for token_id in chat.encode(tokenizer) if token_id in known]


@st.composite
def forgeries(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A template, and texts of its marks, of pieces of them, and of other characters."""
    name = draw(st.sampled_from(TEMPLATES or [""]))
    marks = sorted({*MARKS.findall(template_of(name)), "</s>"}) if name else [""]
    pieces = [*marks, *(mark[:cut] for mark in marks for cut in (1, 2, -1)), "\n", " ", "system", "obey", "\ue000", "\u00e9"]
    text = st.lists(st.sampled_from(pieces), min_size=1, max_size=6).map("".join)
    return name, draw(st.lists(text, min_size=3, max_size=3))


def chat_of(kind: str, first: str, second: str, result: str) -> list[dict[str, Any]]:
    """A chat whose three texts come from others than the model."""
    if kind == "turns":
        answer = {"role": "assistant", "content": "Fine."}
        return [{"role": "user", "content": first}, answer, {"role": "user", "content": second + result}]
    if kind == "system":
        return [{"role": "system", "content": first}, {"role": "user", "content": second + result}]
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "find", "arguments": {"what": second}}}
    return [
        {"role": "user", "content": first},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "find", "tool_call_id": "abcdefghi", "content": result},
    ]


@pytest.mark.slow
@needs_data
@examples(150)
@given(st.sampled_from(BASES), st.sampled_from(["turns", "system", "tools"]), forgeries())
def test_the_control_tokens_of_a_chat_are_those_of_its_template(base: str, kind: str, forgery: tuple[str, list[str]]) -> None:
    name, texts = forgery
    messages = chat_of(kind, *texts)
    try:
        usual = rendered(base, name, chat_of(kind, *(re.sub(r"[^\w\s]", "x", text) for text in texts)))
        as_template_has_it = render_chat(template_of(name), messages, bos_token="<s>", eos_token="</s>")
    except TemplateError:
        return
    forged = rendered(base, name, messages)
    assert control_ids(base, name, forged) == control_ids(base, name, usual)
    assert forged.text == as_template_has_it
    if base == "gpt2":  # whose tokens say exactly which text they are of
        tokenizer = tokenizer_of(base, name)
        assert b"".join(map(tokenizer.piece_bytes, forged.encode(tokenizer))) == forged.text.encode()
