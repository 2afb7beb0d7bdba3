"""Finds out how a model writes its thinking and its tool calls, by rendering its chat template with different histories.

The template writes earlier answers exactly as the model is to write the next one. So a history whose answer has a call shows the
texts around the name and the arguments, a history with two calls shows what stands between calls, and the history of an answer with
thinking shows what encloses it. llama.cpp has the same idea (docs/autoparser.md there). No table of models is needed.
"""

from __future__ import annotations

import dataclasses
import re

from .answer_form import CALL_ID, PROMPTED, AnswerForm, TextForm
from .call_derivation import call_form_of_example, derive_calls, with_headers
from .call_reader import ARGUMENTS, NAMES, shared_beginning
from .reasoning_derivation import derive_reasoning
from .template_probe import ANSWER, THOUGHT, TOOLS, USER, MessageForm, Probe, calls_of


@dataclasses.dataclass(frozen=True, slots=True)
class Derived:
    """Findings from a chat template."""

    form: AnswerForm
    messages: MessageForm
    takes_tools: bool
    """Whether the template shows tools to the model."""
    writes_calls: bool
    """Whether it writes the calls of earlier messages."""
    takes_results: bool
    """Whether it writes messages of the role `tool`."""
    takes_system: bool
    """Whether it writes system messages."""
    takes_parts: bool = False
    """Whether it writes the texts of a content that is a list of parts."""


NOTHING = Derived(AnswerForm(), MessageForm(), takes_tools=False, writes_calls=False, takes_results=False, takes_system=False)
"""Findings from a template that shows nothing."""


def derive(template: str, *, bos_token: str | None, eos_token: str | None) -> Derived:
    """Derive the form of answers from a chat template; one that refuses a question and its answer shows nothing."""
    probe = Probe(template, bos_token, eos_token)
    answered, prompted = probe.after_user({"content": ANSWER}), probe.after_user(prompt=True)
    if answered is None or prompted is None or ANSWER not in answered:
        return NOTHING
    anchor = derive_anchor(probe, answered, prompted)
    if not anchor.strip():
        return NOTHING
    marks, turn_end = text_marks(answered.partition(anchor)[2].partition(ANSWER)[0]), answered.rpartition(ANSWER)[2]
    reasoning, again = derive_reasoning(probe, anchor, prompted, marks), ""
    if reasoning is not None and reasoning.marks[0] in marks:
        marks = ""
    if reasoning is not None and marks and reasoning.close.endswith(anchor):  # the text is another message than the thinking
        reasoning, again = dataclasses.replace(reasoning, close=reasoning.close.removesuffix(anchor)), anchor
    calls, messages, writes_calls = derive_calls(probe, anchor, answered, reasoning, has_marks=bool(marks))
    shown = probe.render([{"role": "user", "content": USER}], prompt=True, tools=TOOLS) or ""
    takes_tools = NAMES[0] in shown
    form = calls or (call_form_of_example(probe, shown) if takes_tools else PROMPTED)
    results = probe.render(
        [
            {"role": "user", "content": USER},
            {"role": "assistant", "content": messages.content, "tool_calls": calls_of(NAMES[:1], ARGUMENTS[:1], messages)},
            {"role": "tool", "name": NAMES[0], "tool_call_id": CALL_ID, "content": THOUGHT},
        ],
        prompt=True,
        tools=TOOLS,
    )
    is_read = calls is not None or not writes_calls
    text = TextForm(marks, closing_of_text(turn_end), again) if marks and is_read else None
    system = probe.render([{"role": "system", "content": THOUGHT}, {"role": "user", "content": USER}], prompt=True)
    parts = probe.render([{"role": "user", "content": [{"type": "text", "text": USER}]}], prompt=True) or ""
    return Derived(
        with_headers(AnswerForm(anchor, reasoning, form, text)),
        messages,
        takes_tools=takes_tools,
        writes_calls=writes_calls,
        takes_results=THOUGHT in (results or ""),
        takes_system=THOUGHT in (system or ""),
        takes_parts=USER in parts and re.search(r"['\"]type['\"]", parts) is None,
    )


def derive_anchor(probe: Probe, answered: str, prompted: str) -> str:
    """Return the text before an answer. Both arguments follow the user's message: one from a history, one from a prompt."""
    user_end = probe.after_user() or ""
    if user_end == prompted:  # some templates end every chat with the beginning of an answer
        user_end = ""
    elif not prompted.startswith(user_end):  # others end it with the end of a text
        user_end = user_end.removesuffix(probe.eos_token or "")
    written, header = (text.removeprefix(user_end) for text in (answered.partition(ANSWER)[0], prompted))
    shared = whole_marks(shared_beginning(written, header))
    if not shared and header.strip() and header in written:
        shared = header
    return without_marks(shared or user_end, probe.template + answered, answered.rpartition(ANSWER)[2])


def whole_marks(text: str) -> str:
    """A text without a mark that has only begun.

    >>> whole_marks("<|assistant|><"), whole_marks("<|assistant|><|START_"), whole_marks("[/INST]")
    ('<|assistant|>', '<|assistant|>', '[/INST]')
    """
    return re.sub(r"<[^<>]*$", "", text)


def without_marks(anchor: str, template: str, turn_end: str) -> str:
    r"""Return the text before an answer without the marks of thinking that some templates write before every answer.

    >>> without_marks("<|assistant|></think>", "<think>...</think>", "<|end|>")
    '<|assistant|>'
    >>> without_marks("<role>model</role>\n<think>", "<role>...</role><think></think>", "<|end|>")
    '<role>model</role>\n'
    """
    while (found := re.search(r"<(/?)([\w:]+)>\s*$", anchor)) is not None and found.start() > 0:
        opening, closing = f"<{found[2]}>", f"</{found[2]}>"
        encloses = bool(found[1]) and bool(anchor[: found.start()].rpartition(opening)[2].strip()) and opening in anchor
        if opening not in template or closing not in template or closing in turn_end or encloses:
            break
        anchor = anchor[: found.start()]
    return anchor


def text_marks(before: str) -> str:
    r"""The marks before the text of an answer, without empty thinking; empty if it has none.

    >>> text_marks("<|channel|>final<|message|>"), text_marks("<think></think>"), text_marks("\n")
    ('<|channel|>final<|message|>', '', '')
    """
    marks = re.sub(r"^\s*(?:<[^<>/]*>\s*)?</[^<>]*>\s*", "", before)
    return marks if re.fullmatch(r"\s*<[^<>/]+>(?:[^<>]*<[^<>/]+>)*\s*", marks) else ""


def closing_of_text(turn_end: str) -> str:
    """The mark after the text of an answer."""
    found = re.match(r"\s*<[^<>]+>", turn_end)
    return found[0] if found is not None else ""
