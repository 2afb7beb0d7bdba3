"""Finds out how a model writes tool calls, from what its chat template writes of earlier ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .answer_form import AnswerForm, CallForm, ReasoningForm
from .call_reader import ARGUMENTS, BOTH, NAMES, CallReader, shared_beginning
from .template_probe import ANSWER, NESTED, NUMBERS, THOUGHT, TOOLS, USER, MessageForm, Probe, calls_of

LONGEST_ENDING = 160
"""Characters after a call that may belong to it; more are the beginning of something else."""
EXAMPLE = re.compile(r'(<[\w|]+>)\s*\{"(name)": <[^>]*>, "(arguments|parameters)": <[^>]*>\}\s*(</?[\w|/]+>)')
"""An example of a call in the instructions that a template writes before the tools."""


def derive_calls(
    probe: Probe, anchor: str, answered: str, reasoning: ReasoningForm | None, *, has_marks: bool
) -> tuple[CallForm | None, MessageForm, bool]:
    """How the model writes calls, how the template wants those of earlier messages, and whether it writes them.

    The first is None if it writes none, or in a form that `CallForm` does not have. `answered`: an answer without calls, whose text
    may have marks.
    """

    def written(form: MessageForm, names: Sequence[str], arguments: Sequence[Mapping[str, Any]]) -> str:
        answer = {"content": form.content, "tool_calls": calls_of(names, arguments, form)}
        text = (probe.after_user(answer, tools=TOOLS) or "").split(anchor, 1)[-1]
        if reasoning is not None:
            opening, closing = map(re.escape, reasoning.marks)
            text = re.sub(rf"^\s*(?:{opening}\s*)?{closing}\s*", "", text)
        return text

    turn_end = answered.rpartition(ANSWER)[2]
    forms = [MessageForm(as_text, content) for as_text in (False, True) for content in ("", None)]
    forms += [dataclasses.replace(form, name_in_id=True) for form in forms]
    for form in forms:
        one = written(form, NAMES[:1], ARGUMENTS[:1])
        if "valueone" not in one or (NAMES[0] not in one and not form.name_in_id):
            continue
        two, wide, number = written(form, NAMES, ARGUMENTS), written(form, NAMES[:1], [BOTH]), written(form, NAMES[:1], [NUMBERS])
        end = shared_end(one, turn_end) if has_marks else turn_end
        found = CallReader(one, two, wide, number, end, probe.eos_token or "").read() if NAMES[0] in one else None
        if found is not None:
            shown: list[tuple[str, Sequence[tuple[str, Mapping[str, Any]]]]] = [
                (one, [(NAMES[0], ARGUMENTS[0])]),
                (wide, [(NAMES[0], BOTH)]),
                (number, [(NAMES[0], NUMBERS)]),
                (written(form, NAMES[:1], [NESTED]), [(NAMES[0], NESTED)]),
                *([(two, list(zip(NAMES, ARGUMENTS, strict=True)))] if found.several else []),
            ]
            ending = found.close + found.end
            # An anchor after the calls: their end was not recognised.
            is_sure = anchor not in ending and len(ending) <= LONGEST_ENDING and all(is_written(found, *each) for each in shown)
            found = found if is_sure else None
        if reasoning is not None and reasoning.key is not None:
            both = {"content": ANSWER, reasoning.key: THOUGHT, "tool_calls": calls_of(NAMES[:1], ARGUMENTS[:1], form)}
            return found, dataclasses.replace(form, thinks_with_text=probe.after_user(both, tools=TOOLS) is not None), True
        return found, form, True
    unread = any("valueone" in written(form, NAMES[:1], ARGUMENTS[:1]) for form in forms)
    return None, MessageForm(), unread


def with_headers(form: AnswerForm) -> AnswerForm:
    """The form with the header of its calls, if the parts of its answers have headers and the name of a call stands in one."""
    calls = form.calls
    if form.header is None or calls is None or calls.kind != "named" or not calls.middle.strip().endswith(form.header[1]):
        return form
    return dataclasses.replace(form, calls=dataclasses.replace(calls, header=form.header))


def shared_end(one: str, other: str) -> str:
    """The longest text from the beginning of a mark on that both end with."""
    return re.sub(r"^[^<]*", "", shared_beginning(one[::-1], other[::-1])[::-1])


def is_written(form: CallForm, text: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Return whether the template wrote the calls in this form, white space apart; Python notation may stand for JSON."""
    if form.kind not in ("named", "tags"):
        return True
    written = dataclasses.replace(form, end="").write(calls)  # DeepSeek R1 has the end after two calls only
    wanted, found = ("".join(each.split()).replace("'", '"').replace("True", "true") for each in (written, text))
    return found.startswith(wanted)


def call_form_of_example(probe: Probe, shown: str) -> CallForm | None:
    """The form of a call that a template explains to the model, if it does not write the calls of earlier messages."""
    found = EXAMPLE.search(shown)
    if found is None or found[0] in (probe.render([{"role": "user", "content": USER}], prompt=True) or ""):
        return None
    opening, name, arguments, closing = found.groups()
    return CallForm(
        "object", open=f"{opening}\n", close=f"\n{closing}", between="\n", name_keys=(name,), arguments_keys=(arguments,)
    )
