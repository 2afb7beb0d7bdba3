"""Encodes the messages of a chat by the model's template, and prepares the next answer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..answers.tools import Tool, read_tools
from ..chat.chat_format import ToolChoice, Turn, choose_tools
from ..chat.fitting import fitted
from ..chat.messages import is_plain, prepare
from ..chat.parts import readable
from ..chat.plain_content import PlainContent, Rendered
from ..errors import ImageError, TemplateError
from ..images.image_rows import ReadImage
from ..images.in_messages import as_text, expanded, is_place, kept, placed, places_in, without_pictures
from ..options.checks import whole_number
from ..options.keywords import TemplateInputs
from ..text.chat_template import check_messages, render_chat
from ..text.prompts import check_characters
from .prompt_encoder import PromptEncoder

Messages = Sequence[Mapping[str, Any]]


class ChatEncoder:
    """Encodes chats for one open model."""

    def __init__(self, encoder: PromptEncoder) -> None:
        self.encoder, self.opened = encoder, encoder.opened

    @property
    def thinks(self) -> bool:
        """Whether the model can think before it answers, as its chat template shows."""
        return self.opened.chat_template is not None and self.opened.chat_format.thinking is not None

    @property
    def calls_tools(self) -> bool:
        """Whether tool calls in its answers can be read: how the model writes them is known."""
        return self.opened.chat_template is not None and self.opened.chat_format.response.tool_calls is not None

    def encode(
        self,
        messages: Messages,
        *,
        continue_final_message: bool = False,
        add_generation_prompt: bool | None = None,
        **inputs: Unpack[TemplateInputs],
    ) -> list[int]:
        """Token ids of a chat; see `Model.encode_chat`."""
        begins = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        messages, images = self.read(messages)
        tools = read_tools(inputs.get("tools") or ())
        rendered = self.render(messages, tools, inputs, begins=begins, continues=continue_final_message)
        return self.encoder.encode(self.ids_of(rendered, images))

    def read(self, messages: Messages) -> tuple[Messages, list[ReadImage]]:
        """Messages that templates can write, and the pictures in them, read; raises `TemplateError` and `ImageError`."""
        check_messages(messages)
        if self.opened.images is None:
            return readable(messages), []
        places, sources = without_pictures(messages, fetches=self.opened.images.fetches)
        return readable(places, is_kept=is_place), self.encoder.read_pictures(sources)

    def held(self, messages: Messages) -> Messages:
        """Messages that hold their pictures, so that a file is read and an address fetched once; raises `ImageError`."""
        reader = self.opened.images
        return messages if reader is None else [kept(each, fetches=reader.fetches) for each in messages]

    def ids_of(self, rendered: Rendered, images: Sequence[ReadImage]) -> list[int]:
        """Token ids of a rendered chat with pictures."""
        about, tokenizer = self.opened.manifest.images, self.opened.tokenizer
        if about is None:
            return rendered.encode(tokenizer)
        inside = [images[each] for each in rendered.pictures]
        if inside:
            rendered = dataclasses.replace(rendered, marked=expanded(rendered.marked, inside, about))
        return placed(rendered.encode(tokenizer), inside, about)

    def turn(
        self,
        messages: Messages,
        *,
        continue_final_message: bool | None = None,
        add_generation_prompt: bool | None = None,
        tool_choice: ToolChoice | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        thinking_budget: int | None = None,
        new_tokens: int = 1,
        **inputs: Unpack[TemplateInputs],
    ) -> Turn:
        """The next answer of a chat, ready to be generated; raises as `encode` does, and `OptionError`.

        With the choice "none" the model is not shown the tools. `new_tokens`: those for which the context needs space.
        """
        messages, images = self.read(messages)
        continues = bool(continue_final_message)
        begins = not continues if add_generation_prompt is None else add_generation_prompt
        every = read_tools(inputs.get("tools") or ())
        chosen, required = choose_tools(every, tool_choice)
        render = functools.partial(self.render, tools=every if chosen else (), inputs=inputs)
        prompt, before = render(messages, begins=begins, continues=continues), Rendered("")
        if begins or continues:
            with contextlib.suppress(TemplateError):  # of a template that needs the message
                before = render(messages[:-1] if continues else messages, begins=False, continues=False)
        return Turn(
            self.opened.chat_format,
            self.encoder.encode(self.ids_of(prompt, images), new_tokens=new_tokens),
            self.opened.chat_format.prefix(prompt.marked, before.marked).replace(prompt.mark, "") if begins or continues else "",
            tools=chosen,
            required=required,
            parallel=self.opened.chat_format.derived.takes_tools if parallel_tool_calls is None else parallel_tool_calls,
            thinking_budget=None if thinking_budget is None else whole_number("thinking_budget", thinking_budget, 0),
            images=images,
        )

    @functools.cached_property
    def plain_content(self) -> PlainContent:
        """Keeps what messages contain from being read as control tokens."""
        opened = self.opened
        others = () if opened.manifest.images is None else (opened.manifest.images.placeholder,)
        return PlainContent(opened.tokenizer, opened.chat_template or "", self.is_written, others)

    def is_written(self, token: str) -> bool:
        """Return whether the model's answers contain a control token, as they do around thinking and calls."""
        return self.opened.chat_format.is_in_answers(token)

    def render(
        self, messages: Messages, tools: Sequence[Tool], inputs: TemplateInputs, *, begins: bool, continues: bool
    ) -> Rendered:
        """The chat as text; `begins`: up to where an answer begins, `continues`: up to the end of the last message."""
        opened = self.opened
        opened.require_decoder("answers no chat")
        if opened.chat_template is None:
            raise TemplateError(f"{opened.manifest.name} has no chat template; give it a plain text")
        write = functools.partial(self.write, tools=tools, inputs=inputs, begins=begins, continues=continues)
        about, count, mark = opened.manifest.images, len(places_in(messages)), f"\uf8ff{secrets.token_hex(8)}\uf8ff"
        if about is None or count == 0:
            return write(messages)
        if opened.chat_format.derived.takes_parts:
            rendered = write(messages)
            if len(rendered.pictures) == count == rendered.marked.count(about.placeholder):
                return rendered
        rendered = write(as_text(messages, mark))
        marks = re.compile(f"{mark}([0-9]+){mark}")
        pictures = tuple(map(int, marks.findall(rendered.marked)))
        text = marks.sub(lambda _: about.placeholder, rendered.marked)
        if text.count(about.placeholder) != count or sorted(pictures) != list(range(count)):
            raise ImageError("the chat template does not write the places of all pictures; put them into messages of the user")
        return dataclasses.replace(rendered, marked=text, pictures=pictures)

    def write(
        self, messages: Messages, *, tools: Sequence[Tool], inputs: TemplateInputs, begins: bool, continues: bool
    ) -> Rendered:
        """Write messages by the template."""
        opened, shown = self.opened, None
        if tools or not all(map(is_plain, messages)):
            messages, shown = prepare(messages, tools, opened.chat_format.derived)
        write = functools.partial(
            render_chat,
            opened.chat_template or "",
            bos_token=opened.bos_token,
            eos_token=opened.eos_token,
            add_generation_prompt=begins,
            continue_final_message=continues,
            variables=inputs.get("chat_template_kwargs"),
        )

        order = dict[str, tuple[int, ...]]()
        """Of each text that the template wrote, the pictures in its messages, which may be in another order."""

        def noted(form: Messages, /, **given: Any) -> str:  # noqa: ANN401 - as `render_chat` takes it
            text = write(form, **given)
            order[text] = places_in(form)
            return text

        pictures = list[tuple[int, ...]]()

        def render(marked: Messages, tools: Sequence[Mapping[str, Any]] | None, documents: object) -> str:
            text = fitted(functools.partial(noted, documents=documents), marked, tools)
            pictures.append(order[text])
            return text

        rendered = self.plain_content.rendered(render, messages, tools=shown, documents=inputs.get("documents"))
        check_characters(rendered.marked, self.encoder.context_length)
        return dataclasses.replace(rendered, pictures=pictures[-1])
