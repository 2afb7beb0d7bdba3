"""All that the chats of a package need: how prompts are written, how answers are read, and which rule an answer has to follow."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..answers.answer_reader import AnswerReader
from ..answers.contents import MATCH_SECONDS
from ..answers.response_template import ResponseTemplate, read_response_template
from ..answers.tools import Tool
from ..derivation.answer_form import CallForm, ReasoningForm, TextForm
from ..derivation.derive import Derived, derive
from ..derivation.form_templates import read_calls, read_reasoning, response_template_of
from ..errors import LOG, OptionError, PackageError
from ..images.image_rows import ReadImage
from ..options.checks import shown
from ..options.generation_config import GenerationConfig
from ..sampling.grammar import Rules
from ..sampling.thinking import AfterThinking, Led, Rule, Thinking
from ..text.tokenizer import TextTokenizer
from .call_grammar import grammar_of_calls, rule_of

ToolChoice = Literal["auto", "none", "required"]
TRIAL = [("get_weather", {"city": 'Val d\'Is\u00e8re "up"', "days": "three"}), ("stop", {})]
"""Calls by which a form is tried: what it writes has to be read again."""


class ChatFormat:
    """The forms of one package. They are found at the first use, which renders the template some twenty times."""

    def __init__(
        self,
        template: str,
        tokenizer: TextTokenizer,
        *,
        bos_token: str | None,
        eos_token: str | None,
        response_template: Mapping[str, Any] | None = None,
    ) -> None:
        """`response_template`: the package's own; None: the one that the chat template shows."""
        self.template, self.bos_token, self.eos_token = template, bos_token, eos_token
        self.given, self.plain_tokenizer = response_template, tokenizer

    @functools.cached_property
    def derived(self) -> Derived:
        """Findings from the chat template; a form of calls that it does not show comes from the package's own response template."""
        found = derive(self.template, bos_token=self.bos_token, eos_token=self.eos_token)
        if found.form.calls is not None or self.given is None:
            return found
        return dataclasses.replace(found, form=dataclasses.replace(found.form, calls=read_calls(self.response)))

    @functools.cached_property
    def response(self) -> ResponseTemplate:
        """The template that reads answers; raises `PackageError` if the package's own is not valid."""
        return read_response_template(self.given if self.given is not None else response_template_of(self.derived.form))

    @functools.cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer, which decodes the control tokens that the response template names."""
        return self.plain_tokenizer.showing(self.response.writes)

    def is_in_answers(self, token: str) -> bool:
        """Return whether answers contain a control token, as around thinking and calls, and not at their beginning or end."""
        ends = self.plain_tokenizer.special_tokens.get(token) in self.plain_tokenizer.eos_ids
        return not ends and self.response.writes(token, in_answers=True)

    @functools.cached_property
    def reasoning(self) -> ReasoningForm | None:
        """How the model thinks; None if it does not, or if that is not known as plain texts."""
        derived, read = self.derived.form.reasoning, read_reasoning(self.response)
        is_same = derived is not None and read is not None and derived.marks == read.marks
        return derived if is_same else read  # the derived one has the white space around the marks

    @functools.cached_property
    def text(self) -> TextForm | None:
        """The marks around the text of an answer, if it has such, and if answers are read as the chat template shows."""
        return self.derived.form.text if self.given in (None, response_template_of(self.derived.form)) else None

    @functools.cached_property
    def calls(self) -> CallForm | None:
        """How the model writes calls; None if that is not known, or if the response template does not read it."""
        form = self.derived.form.calls
        if form is None:
            return None
        tools = [Tool(name) for name, _ in TRIAL]
        for calls in (TRIAL[:1], TRIAL[1:]):
            reader = AnswerReader(self.response, tools=tools)
            reader.push(form.write(calls))
            reader.flush()
            if [(call.name, call.arguments) for call in reader.calls] != calls:
                return None
        return form

    @property
    def why_not_required(self) -> str:
        """Why an answer cannot be held to the form of calls, and what to do; for a format whose `calls` are None."""
        if self.derived.form.calls is not None:
            reason = "the response template does not read the calls that the chat template writes; give another one"
        elif self.response.tool_calls is not None:
            reason = (
                "its response template reads calls in a form that cannot be written; give one that reads JSON between two texts"
            )
        else:
            reason = "its chat template shows it the tools, and not the form of its calls; give a response template that reads them"
        return f"{reason}, by load(response_template=...) or --response-template FILE"

    @functools.cached_property
    def thinking(self) -> Thinking | None:
        """How the thinking begins and ends as tokens; None if the model does not think."""
        if self.reasoning is None:
            return None
        encode = functools.partial(self.tokenizer.encode, add_special_tokens=False)
        opening, mark = encode(self.reasoning.open.strip()), self.reasoning.close.strip()
        closing = self.reasoning.close + (self.text.again if self.text is not None else "")
        tail = closing.partition(mark)[2]
        return Thinking(
            open_ids=tuple(opening),
            close=mark.encode(),
            closing_ids=tuple(encode(closing)),
            tail_ids=tuple(encode(tail)) if tail else (),
            eos_ids=self.tokenizer.eos_ids,
            piece_bytes=self.tokenizer.piece_bytes,
            encode=encode,
        )

    def prefix(self, prompt: str, before: str) -> str:
        """Return the beginning of the answer that the template wrote: the text after the last anchor, unless that is in `before`.

        `before`: the same messages without the beginning of an answer.
        """
        try:
            ends = [match.end() for match in self.response.anchor.pattern.finditer(prompt, timeout=MATCH_SECONDS)]
        except TimeoutError as error:
            raise PackageError("the start_anchor_pattern of the response template takes too long; give another template") from error
        shared = len(before) if prompt.startswith(before) else 0
        return prompt[ends[-1] :] if ends and ends[-1] > shared else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One answer that is to be generated: its prompt, and what it may or has to contain."""

    format: ChatFormat
    prompt_ids: Sequence[int]
    prefix: str
    """Beginning of the answer that is in the prompt."""
    tools: Sequence[Tool] = ()
    """The tools that may be called."""
    required: bool = False
    """Whether the answer has to be a call."""
    parallel: bool = True
    """Whether it may have several calls."""
    thinking_budget: int | None = None
    images: Sequence[ReadImage] = ()
    """The pictures in the prompt, which are held until it has been fed."""

    @property
    def tokenizer(self) -> TextTokenizer:
        """Decodes the answer."""
        return self.format.tokenizer

    def reader(self, rule: Rule | None) -> AnswerReader:
        """Return a reader for the answer; `rule`: the rule that the answer follows."""
        return AnswerReader(self.format.response, prefix=self.prefix, tools=self.tools, grows=bool(self.tools) and has_rule(rule))

    def rule(self, rules: Rules, config: GenerationConfig) -> Rule | None:
        """Return the rule for the answer after the thinking; raises `OptionError` for what cannot be required."""
        thinking = self.format.thinking
        if self.thinking_budget is not None and thinking is None:
            raise OptionError("thinking_budget has no effect: this model does not think; leave it out")
        rule: Rule | None = self.rule_of_calls(rules, config) if self.tools else self.rule_of_text(rules, config)
        if thinking is None or (rule is None and self.thinking_budget is None):
            return rule
        reader = AnswerReader(self.format.response, prefix=self.prefix)
        may_begin = not self.prefix.strip()
        return AfterThinking(rule, thinking, is_open=reader.is_thinking, may_begin=may_begin, budget=self.thinking_budget)

    def rule_of_text(self, rules: Rules, config: GenerationConfig) -> Rule | None:
        """Return the rule for an answer without tools; it begins after the marks before its text, if there are any."""
        rule, text = rules.constraint(config), self.format.text
        if rule is None or text is None or self.prefix.strip().endswith(text.open.strip()):
            return rule
        return Led(self.format.tokenizer.encode(text.open, add_special_tokens=False), rule)

    def rule_of_calls(self, rules: Rules, config: GenerationConfig) -> Rule | None:
        """The grammar of an answer that may have calls; None if it is not needed and cannot be made."""
        if config.regex is not None or config.grammar is not None:
            raise OptionError("an answer with tools cannot follow a regex or a grammar too; leave out one of them")
        needed = self.required or config.json_schema is not None or any(tool.strict for tool in self.tools)
        form = self.format.calls
        if form is None:
            if needed:
                refused = "with this model calls cannot be required, nor go with a schema or strict tools"
                raise OptionError(f"{refused}: {self.format.why_not_required}")
            return None
        schema = None if config.json_schema is None else json.loads(config.json_schema)
        split = self.format.tokenizer.split_at_control_tokens
        how: dict[str, Any] = {"required": self.required, "parallel": self.parallel, "schema": schema}
        how["is_strict"] = config.strict_schema
        how |= {"text": self.format.text, "eos_ids": self.format.tokenizer.eos_ids}
        try:
            return rules.compiled("tools", grammar_of_calls(self.tools, form, split, **how))
        except OptionError:
            tools = [expressible(tool, rules) for tool in self.tools]
            if any(tool.strict and tool != wider for tool, wider in zip(self.tools, tools, strict=True)):
                raise
        try:
            return rules.compiled("tools", grammar_of_calls(tools, form, split, **how))
        except OptionError:
            if needed:
                raise
            return None  # the model calls tools without help, and its calls are read as they come


def expressible(tool: Tool, rules: Rules) -> Tool:
    """The tool with any value for each argument that no grammar can express, or with any arguments."""

    def is_expressible(schema: Mapping[str, Any]) -> bool:
        try:
            rules.compiled("tools", f"start: {rule_of(schema, tool)}")
        except OptionError:
            return False
        return True

    schema = tool.schema
    if is_expressible(schema) or not is_expressible({}):  # without llguidance nothing is
        return tool
    odd = [key for key, each in schema["properties"].items() if not is_expressible(each)]
    LOG.warning("no grammar can express %s of the tool %s: any value is taken", ", ".join(odd) or "the parameters", tool.name)
    kept: dict[str, Any] = {
        key: schema[key] for key in ("required", "additionalProperties", "$defs", "definitions") if key in schema
    }
    properties = schema["properties"] | {key: {} for key in odd}
    wider = dataclasses.replace(tool, parameters={**kept, "properties": properties})
    return wider if odd and is_expressible(wider.schema) else dataclasses.replace(tool, parameters={"additionalProperties": True})


def has_rule(rule: Rule | None) -> bool:
    """Return whether there is a rule for the answer itself."""
    return rule is not None and not (isinstance(rule, AfterThinking) and rule.rule is None)


def choose_tools(tools: Sequence[Tool], choice: ToolChoice | Mapping[str, Any] | None) -> tuple[list[Tool], bool]:
    """The tools that may be called, and whether one has to be; raises `OptionError` for a choice that cannot be made.

    `choice`: in OpenAI's form, "auto", "none", "required" or {"type": "function", "function": {"name": ...}}.
    """
    if choice in (None, "auto"):
        return list(tools), False
    if choice == "none":
        return [], False
    if not tools:
        raise OptionError(f"tool_choice {shown(choice)} needs tools; give some, or leave it out")
    if choice == "required":
        return list(tools), True
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    chosen = [tool for tool in tools if tool.name == name]
    if not chosen:
        names = ", ".join(tool.name for tool in tools)
        raise OptionError(f"tool_choice should be auto, none, required or one of the tools ({names}), found {shown(choice)}")
    return chosen, True
