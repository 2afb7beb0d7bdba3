"""Finds out how a model writes its thinking and its tool calls, by rendering its chat template with different histories.

The template writes earlier answers exactly as the model is to write the next one. So a history whose answer has a call shows the
texts around the name and the arguments, a history with two calls shows what stands between calls, and the history of an answer with
thinking shows what encloses it. llama.cpp has the same idea (docs/autoparser.md there). No table of models is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from ..text.chat_template import render_chat
from .answer_form import CALL_ID, PROMPTED, AnswerForm, CallForm, ReasoningForm
from .call_reader import ARGUMENTS, BOTH, NAMES, CallReader, shared_beginning
from .response_template import REASONING_FIELDS

USER, ANSWER, THOUGHT = "question from a user", "answer of the model", "thought of the model"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking off."""
MOST_NAMES = 32
"""Names of tags in a template that are tried as marks of thinking, each with a rendering."""
EXAMPLE = re.compile(r'(<[\w|]+>)\s*\{"(name)": <[^>]*>, "(arguments|parameters)": <[^>]*>\}\s*(</?[\w|/]+>)')
"""An example of a call in the instructions that a template writes before the tools."""


@dataclasses.dataclass(frozen=True, slots=True)
class MessageForm:
    """What a template expects of earlier messages with calls."""

    arguments_as_text: bool = False
    """Whether it writes arguments unchanged, so that they have to be JSON already."""
    content: str | None = ""
    """The content of a message that has only calls."""


@dataclasses.dataclass(frozen=True, slots=True)
class Derived:
    """What a chat template shows."""

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


NOTHING = Derived(AnswerForm(), MessageForm(), takes_tools=False, writes_calls=False, takes_results=False, takes_system=False)
"""What a template shows from which nothing can be derived."""


def tool_named(name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
    """A tool with arguments that are texts."""
    properties = {key: {"type": "string", "description": f"about {key}"} for key in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", "parameters": parameters}}


TOOLS = [tool_named(name, BOTH) for name in NAMES]


class Probe:
    """Renders a template, with None for what it refuses."""

    def __init__(self, template: str, bos_token: str | None, eos_token: str | None) -> None:
        self.template, self.bos_token, self.eos_token = template, bos_token, eos_token

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str | None:
        """The chat; with `prompt` up to where an answer begins."""
        for given in (tools,) if tools is not None else (None, ()):  # some templates need a list of tools
            with contextlib.suppress(TemplateError):
                return render_chat(
                    self.template,
                    messages,
                    bos_token=self.bos_token,
                    eos_token=self.eos_token,
                    add_generation_prompt=prompt,
                    tools=given,
                    variables=variables,
                )
        return None

    def after_user(self, answer: Mapping[str, Any] | None = None, **more: Any) -> str | None:  # noqa: ANN401
        """What follows the user's message: an answer with these fields, or nothing."""
        user = {"role": "user", "content": USER}
        text = self.render([user, {"role": "assistant", **answer}] if answer is not None else [user], **more)
        return None if text is None or USER not in text else text.rpartition(USER)[2]


def derive(template: str, *, bos_token: str | None, eos_token: str | None) -> Derived:
    """What a template shows; one that refuses even a question and its answer shows nothing."""
    probe = Probe(template, bos_token, eos_token)
    answered, prompted = probe.after_user({"content": ANSWER}), probe.after_user(prompt=True)
    if answered is None or prompted is None or ANSWER not in answered:
        return NOTHING
    user_end = probe.after_user() or ""
    if not prompted.startswith(user_end):  # some templates end every chat with it that has no beginning of an answer
        user_end = user_end.removesuffix(eos_token or "")
    headers = [text.removeprefix(user_end) for text in (answered, prompted)]
    turn_end = answered.rpartition(ANSWER)[2]
    anchor = without_marks(shared_beginning(headers[0].partition(ANSWER)[0], headers[1]) or user_end, template, turn_end)
    if not anchor.strip():
        return NOTHING
    reasoning = derive_reasoning(probe, anchor, headers[1])
    calls, messages, writes_calls = derive_calls(probe, anchor, turn_end, reasoning)
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
    system = probe.render([{"role": "system", "content": THOUGHT}, {"role": "user", "content": USER}], prompt=True)
    return Derived(
        AnswerForm(anchor, reasoning, form),
        messages,
        takes_tools=takes_tools,
        writes_calls=writes_calls,
        takes_results=THOUGHT in (results or ""),
        takes_system=THOUGHT in (system or ""),
    )


def without_marks(anchor: str, template: str, turn_end: str) -> str:
    """What comes before an answer, without the marks of thinking that some templates write before every answer.

    >>> without_marks("<|assistant|></think>", "<think>...</think>", "<|end|>")
    '<|assistant|>'
    """
    while (found := re.search(r"</?(\w+)>\s*$", anchor)) is not None and found.start() > 0:
        opening, closing = f"<{found[1]}>", f"</{found[1]}>"
        if opening not in template or closing not in template or closing in turn_end:
            break
        anchor = anchor[: found.start()]
    return anchor


def derive_reasoning(probe: Probe, anchor: str, prompted: str) -> ReasoningForm | None:
    """How the model writes its thinking."""
    for key in REASONING_FIELDS:
        text = probe.after_user({"content": ANSWER, key: THOUGHT})
        if text is not None and THOUGHT in text and ANSWER in text.rpartition(THOUGHT)[2]:
            before, _, after = text.rpartition(THOUGHT)
            opening, closing = before.rpartition(anchor)[2], after.partition(ANSWER)[0]
            if opening.strip() and closing.strip():
                return ReasoningForm(opening, closing, key)
    pair = thinking_in_prompt(probe, anchor) or thinking_removed(probe, prompted.removeprefix(anchor))
    return None if pair is None else ReasoningForm(*pair)


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


def calls_of(names: Sequence[str], arguments: Sequence[Mapping[str, Any]], form: MessageForm) -> list[dict[str, Any]]:
    """Calls for a message, in the form that the template expects."""
    given = [json.dumps(each) if form.arguments_as_text else dict(each) for each in arguments]
    return [
        {"id": CALL_ID, "type": "function", "function": {"name": name, "arguments": each}}
        for name, each in zip(names, given, strict=True)
    ]


def derive_calls(
    probe: Probe, anchor: str, turn_end: str, reasoning: ReasoningForm | None
) -> tuple[CallForm | None, MessageForm, bool]:
    """How the model writes calls, how the template wants those of earlier messages, and whether it writes them.

    The first is None if it writes none, or in a form that `CallForm` does not have.
    """

    def written(form: MessageForm, names: Sequence[str], arguments: Sequence[Mapping[str, Any]]) -> str:
        answer = {"content": form.content, "tool_calls": calls_of(names, arguments, form)}
        text = (probe.after_user(answer, tools=TOOLS) or "").split(anchor, 1)[-1]
        if reasoning is not None:
            opening, closing = map(re.escape, reasoning.marks)
            text = re.sub(rf"^\s*(?:{opening}\s*)?{closing}\s*", "", text)
        return text

    forms = (MessageForm(as_text, content) for as_text in (False, True) for content in ("", None))
    for form in forms:
        one = written(form, NAMES[:1], ARGUMENTS[:1])
        if "valueone" in one:
            two, wide = written(form, NAMES, ARGUMENTS), written(form, NAMES[:1], [BOTH])
            found = CallReader(one, two, wide, turn_end, probe.eos_token or "").read() if NAMES[0] in one else None
            number = {"argone": 1}
            shown: list[tuple[str, Mapping[str, Any]]] = [(one, ARGUMENTS[0]), (written(form, NAMES[:1], [number]), number)]
            is_sure = found is not None and anchor not in found.end and all(is_written(found, *each) for each in shown)
            return found if is_sure else None, form, True  # an anchor after calls: their end was not recognised
    return None, MessageForm(), False


def is_written(form: CallForm, text: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call in this form is what the template wrote, apart from white space. JSON may be written in many ways."""
    if form.kind not in ("named", "tags"):
        return True
    written = dataclasses.replace(form, end="").write([(NAMES[0], arguments)])  # DeepSeek R1 has the end after two calls only
    wanted, found = ("".join(each.split()) for each in (written, text))
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
