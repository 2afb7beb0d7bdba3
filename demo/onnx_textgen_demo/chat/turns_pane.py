"""The messages of a conversation as HTML: what was said, thoughts folded, tool calls as cards, figures below each answer.

Every text is escaped here, or is Markdown that `markdown_html` renders.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from onnx_textgen.answers.visible_text import visible
from onnx_textgen.chat.own_functions import NOT_ALLOWED

from ..conversation.message_tree import Figures, Message, MessageTree
from ..conversation.open_calls import open_calls
from ..conversation.parts import Part, Reasoning, Text, ToolCall, parts_of
from ..conversation.user_pictures import pictures_html
from ..view import ENDINGS
from .formulas import katex_files
from .markdown import markdown_html
from .turn_buttons import tools_html

SCRIPTS = ("pressed_twice.js", "formulas.js", "turns_pane.js")
EVENTS = "\n".join(
    [
        f"const KATEX = {json.dumps(katex_files())};",
        *(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in SCRIPTS),
    ]
)

SUGGESTIONS = (
    "What is a key/value cache, in two sentences?",
    "Write a Python function that counts the words of a text.",
    "Suggest three names for a small grey cat.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """A message that is shown, with the results of its tool calls."""

    index: int
    results: tuple[int, ...] = ()
    alternatives: Sequence[int] = ()
    """The messages at its place, itself included."""
    count: int = 1
    """How many messages there are from it on, in any version."""


def turns_html(tree: MessageTree, *, grows: bool = False, runs: bool = False, asks: bool = False) -> str:
    """The shown branch of a conversation; suggestions if it is empty.

    `grows`: without its last message, which grows. `runs`: a function runs. `asks`: the user decides about open calls.
    """
    if not tree.path:
        return f'<section class="turns empty" aria-label="Messages">{invitation()}</section>'
    is_busy = grows or runs
    turns = turns_of(tree)[:-1] if grows else turns_of(tree)
    waiting = open_calls(tree) if asks and not is_busy else None
    models = {node.figures.model for node in (tree.nodes[turn.index] for turn in turns) if node.figures}
    shown = [
        turn_html(
            tree,
            turn,
            is_growing=False,
            names_model=len(models) > 1,
            asked=waiting.numbers if waiting is not None and waiting.answer == turn.index else (),
        )
        for turn in turns
    ]
    if not is_busy and waiting is None and tree.nodes[tree.leaf].message["role"] != "assistant":
        retry = f'data-does="retry" data-index="{tree.leaf}" aria-label="Let the model answer"'
        shown.append(f'<p class="unanswered"><button type="button" {retry}>Answer</button></p>')
    elif not is_busy and tree.can_be_continued(tree.leaf):
        play = f'data-does="play" data-index="{tree.leaf}"'
        shown.append(f'<p class="unanswered"><button type="button" {play}>Continue this answer</button></p>')
    busy = "true" if is_busy else "false"
    state = f'role="log" aria-label="Messages" aria-busy="{busy}" data-key="{tree.key}"'
    return f'<section class="turns" {state}>{"".join(shown)}</section>'


def growing_html(tree: MessageTree) -> str:
    """The last message, which grows: drawn alone, because drawing a long conversation many times a second would take too long."""
    turn = turn_html(tree, Turn(tree.leaf), is_growing=True, names_model=False)
    return f'<section class="turns" aria-label="Answer">{turn}</section>'


def invitation() -> str:
    """What an empty conversation shows."""
    buttons = "".join(f'<li><button type="button" data-says="{escape(each)}">{escape(each)}</button></li>' for each in SUGGESTIONS)
    return f"<h2>What shall we talk about?</h2><ul>{buttons}</ul>"


def turns_of(tree: MessageTree) -> list[Turn]:
    """The messages that are shown, each with the tool results that follow it."""
    alternatives, counts, turns = tree.alternatives(), tree.counts(), list[Turn]()
    for index in tree.path:
        node = tree.nodes[index]
        if node.message["role"] == "tool" and turns:
            turns[-1] = dataclasses.replace(turns[-1], results=(*turns[-1].results, index))
        else:
            turns.append(Turn(index, alternatives=alternatives[node.parent], count=counts[index]))
    return turns


def turn_html(tree: MessageTree, turn: Turn, *, is_growing: bool, names_model: bool, asked: Sequence[int] = ()) -> str:
    """One message, with its buttons unless it still grows.

    `names_model`: several models wrote the answers. `asked`: the numbers of its calls that the user decides about.
    """
    node = tree.nodes[turn.index]
    end = turn.results[-1] if turn.results else turn.index
    tools = tools_html(node.message, turn.index, end=end, alternatives=turn.alternatives, count=turn.count)
    if node.message["role"] == "user":
        text = str(node.message["content"] or "")
        said = pictures_html(node.message) + (f'<div class="said">{escape(text)}</div>' if text else "")
        return article(turn.index, "user", "You", f"{said}{tools}")
    seconds = node.figures.thinking_seconds if node.figures else 0.0
    results = [tree.nodes[each].message for each in turn.results]
    parts = parts_of(node.message, results, node.unfinished_calls, thinking_seconds=seconds)
    buttons = {number: call_buttons(node.message, turn.index, number) for number in asked}
    body = parts_html(parts, buttons, is_growing=is_growing) or f'<p class="aside">{"…" if is_growing else "(empty)"}</p>'
    figures = figures_html(node.figures, names_model=names_model) if node.figures else ""
    return article(turn.index, "assistant", "Model", f"{body}{figures}{'' if is_growing else tools}")


def article(index: int, kind: str, name: str, body: str) -> str:
    """The frame of a message."""
    return f'<article class="turn {kind}" data-node="{index}" aria-label="{name}">{body}</article>'


def parts_html(parts: Sequence[Part], buttons: Mapping[int, str], *, is_growing: bool) -> str:
    """The parts of an answer; `buttons`: of calls that the user decides about, by number."""
    numbers = itertools.count()
    asked = [buttons.get(next(numbers), "") if isinstance(part, ToolCall) else "" for part in parts]
    return "".join(part_html(*each, is_growing=is_growing) for each in zip(parts, asked, strict=True))


def part_html(part: Part, buttons: str, *, is_growing: bool) -> str:
    """A part of an answer; `buttons`: of a call that the user decides about."""
    match part:
        case Text(text):
            return f'<div class="markdown">{markdown_html(text)}</div>'
        case Reasoning():
            return reasoning_html(part)
        case ToolCall(is_whole=False):
            return unfinished_call_html(part, is_growing=is_growing)
        case ToolCall():
            return tool_call_html(part, buttons)


def reasoning_html(part: Reasoning) -> str:
    """Thoughts, folded."""
    thought = f"Thought for {part.seconds:,.0f} s" if part.seconds >= 0.5 else "Thought"
    title = thought if part.is_over else "Thinking …"
    text = markdown_html(part.text)
    return f'<details class="thoughts"><summary>{title}</summary><div class="markdown">{text}</div></details>'


def tool_call_html(part: ToolCall, buttons: str = "") -> str:
    """A tool call as a card: its name, its arguments, and its result, or the buttons that decide about it."""
    waits = "waits for you" if buttons else "no result yet"
    state = waits if part.result is None else "refused" if part.result == NOT_ALLOWED else "done"
    result = "" if part.result is None else f'<p class="label">Result</p><pre tabindex=0><code>{escape(part.result)}</code></pre>'
    return card_html(part, state, f"{result}{buttons}")


def unfinished_call_html(part: ToolCall, *, is_growing: bool) -> str:
    """A tool call that the model still writes, or that its answer ended in; it has no buttons, because it cannot run."""
    if is_growing:
        return card_html(part, "the model writes it")
    return card_html(part, "cut off", '<p class="label">The answer ended within this call, so it cannot run.</p>')


def card_html(part: ToolCall, state: str, below: str = "") -> str:
    """The card of a tool call, with what stands below its arguments."""
    arguments = f"<pre tabindex=0><code>{escape(visible(part.arguments))}</code></pre>" if part.arguments else ""
    head = f"<summary>Tool <code>{escape(visible(part.name))}</code> <small>{state}</small></summary>"
    return f'<details class="tool-call" open>{head}{arguments}{below}</details>'


def call_buttons(message: Message, index: int, number: int) -> str:
    """The buttons that decide about a call: its answer, that one's index, and the number of the call there."""
    name = escape(message["tool_calls"][number]["function"]["name"])
    labels = {"run": ("Run", f"Run {name}"), "always": ("Always run this function", f"Always run this function: {name}")}
    labels["refuse"] = ("Refuse", f"Refuse {name}")
    made = "".join(
        f'<button type="button" data-does="decide" data-index="{index}" data-call="{number}" data-decision="{decision}"'
        f' aria-label="{said}">{label}</button>'
        for decision, (label, said) in labels.items()
    )
    return f'<div class="decide" role="group" aria-label="The model wants to run {name}">{made}</div>'


def figures_html(figures: Figures, *, names_model: bool = False) -> str:
    """Speed, length, how full the context is, and how the answer ended."""
    facts = [f"<b>{escape(figures.model)}</b>"] if names_model else []
    if figures.tokens_per_second:
        facts.append(f"<b>{figures.tokens_per_second:,.1f}</b> tokens/s")
    if figures.generated_tokens:
        facts.append(f"<b>{figures.generated_tokens:,}</b> token{'' if figures.generated_tokens == 1 else 's'}")
    if figures.first_token_seconds:
        facts.append(f'<span class="aside">first after <b>{1000 * figures.first_token_seconds:,.0f} ms</b></span>')
    if figures.context_length:
        facts.append(context_html(figures))
    if figures.reused_tokens:
        facts.append(f'<span class="aside">from cache <b>{figures.reused_tokens:,} of {figures.prompt_tokens:,}</b></span>')
    if figures.finish_reason not in ("", "eos", "tool_calls"):  # the cards say the last
        facts.append(escape(ENDINGS.get(figures.finish_reason, figures.finish_reason)))
    return f'<p class="figures">{"".join(f"<span>{fact}</span>" for fact in facts)}</p>' if facts else ""


def context_html(figures: Figures) -> str:
    """How full the context is, as numbers and as a bar."""
    share = min(1.0, figures.context_tokens / figures.context_length)
    return (
        f'<span class="context-bar" aria-hidden="true"><i style="width:{100 * share:.1f}%"></i></span>'
        f'<b>{figures.context_tokens:,} / {figures.context_length:,}</b> <span class="words">tokens of context</span>'
    )
