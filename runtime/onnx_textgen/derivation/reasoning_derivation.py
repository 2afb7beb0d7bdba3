"""Finds out how a model writes its thinking, from what its chat template writes around that of earlier answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..answers.response_template import REASONING_FIELDS
from .answer_form import ReasoningForm
from .call_reader import ARGUMENTS, NAMES
from .template_probe import ANSWER, THOUGHT, TOOLS, MessageForm, Probe, calls_of, content_with_thinking

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking on and off."""
SWITCHED_ON: Sequence[Mapping[str, bool] | None] = (None, *({name: True} for name in THINKING_SWITCHES))
"""Thinking as the template has it by itself, and switched on."""
MOST_NAMES = 32
"""Names of tags in a template that are tried as marks of thinking, each with a rendering."""


def derive_reasoning(probe: Probe, anchor: str, prompted: str, text_marks: str) -> ReasoningForm | None:
    """How the model writes its thinking; `text_marks`: what stands before the text that follows it."""
    for variables in SWITCHED_ON:
        for key in REASONING_FIELDS:
            text = probe.after_user({"content": ANSWER, key: THOUGHT}, variables=variables)
            if text is not None and THOUGHT in text and ANSWER in text.rpartition(THOUGHT)[2]:
                before, _, after = text.rpartition(THOUGHT)
                opening, closing = before.rpartition(anchor)[2], after.partition(ANSWER)[0].removesuffix(text_marks)
                if opening.strip() and closing.strip():
                    return ReasoningForm(opening, closing, key)
    if (found := thinking_before_calls(probe, anchor)) is not None:
        return found
    pair = thinking_in_prompt(probe, anchor) or thinking_removed(probe, prompted.rpartition(anchor)[2])
    return ReasoningForm(*pair) if pair is not None else thinking_as_part(probe, anchor)


def thinking_before_calls(probe: Probe, anchor: str) -> ReasoningForm | None:
    """The form of thinking that the template writes only in answers that have calls."""
    calls = calls_of(NAMES[:1], ARGUMENTS[:1], MessageForm())
    for key in REASONING_FIELDS:
        text = probe.after_user({"content": "", key: THOUGHT, "tool_calls": calls}, tools=TOOLS) or ""
        before, thought, after = text.rpartition(THOUGHT)
        opening, closing = before.rpartition(anchor)[2], re.match(r"\s*<[^<>]+>", after)
        if thought and opening.strip() and closing is not None and "valueone" in after:
            return ReasoningForm(opening, closing[0], key)
    return None


def thinking_as_part(probe: Probe, anchor: str) -> ReasoningForm | None:
    """The form of thinking that the template writes where it is a part of the content, as Ministral 3's does."""
    text = probe.after_user({"content": content_with_thinking(THOUGHT, ANSWER)}) or ""
    before, thought, after = text.rpartition(THOUGHT)
    opening, closing = before.rpartition(anchor)[2], after.partition(ANSWER)[0]
    is_data = '"thinking"' in opening or "'thinking'" in opening  # of a template that writes whatever it is given
    is_found = thought and ANSWER in after and opening.strip() and closing.strip() and not is_data
    return ReasoningForm(opening, closing, is_part=True) if is_found else None


def thinking_in_prompt(probe: Probe, anchor: str) -> tuple[str, str] | None:
    """The marks of thinking that is switched off: templates then write it empty before the answer."""
    for switch in THINKING_SWITCHES:
        text = probe.after_user(prompt=True, variables={switch: False}) or ""
        if anchor in text and len(marks := text.rpartition(anchor)[2].split()) == 2:
            return marks[0], marks[1]
    return None


def thinking_removed(probe: Probe, prefix: str) -> tuple[str, str] | None:
    """The marks of thinking that the template removes from earlier answers, or that it opens before an answer."""
    for name in list(dict.fromkeys(re.findall(r"</(\w+)>", probe.template)))[:MOST_NAMES]:
        text = probe.after_user({"content": f"<{name}>{THOUGHT}</{name}>{ANSWER}"})
        opens = prefix.strip() == f"<{name}>"
        if text is not None and ANSWER in text and (opens or THOUGHT not in text):
            return prefix if opens else f"<{name}>", f"</{name}>"
    return None
