"""The embedded model, told what to write: calls of functions, and what it says after their results."""

from collections.abc import Callable
from typing import Any

import numpy as np

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.api.conversation import Conversation

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOLS = '''
from pathlib import Path

MARKS = Path(__file__).with_name("marks")

def mark(name: str) -> str:
    """Leave a mark."""
    with MARKS.open("a") as file:
        file.write(name + "\\n")
    return f"marked {name}"

def fail(a: int) -> int:
    """Fail."""
    raise ValueError("no <b>")
'''
"""A file whose functions leave a trace of having run: `marks_of`."""


def mark(name: str) -> str:
    """A call of `mark`, as the model writes it."""
    return '<call>{"name": "mark", "arguments": {"name": "' + name + '"}}</call>'


FAIL = '<call>{"name": "fail", "arguments": {"a": 1}}</call>'


class ToldSession(Conversation):
    """Writes the next of its texts."""

    texts: list[str]

    def stream_chat(self, **options: Any) -> Any:
        text = self.texts.pop(0) if self.texts else "Done."
        told = {"logits_processor": saying(self.opened, text), "temperature": 0, "max_new_tokens": 400}
        return super().stream_chat(cancel=options.get("cancel"), **told)


class CallingModel(Model):
    """Writes given texts, one answer after the other, then "Done."."""

    texts: list[str]

    def session(self, **inputs: Any) -> ToldSession:
        made = ToldSession(self.generator, inputs)  # type: ignore[arg-type]  # the names are checked there
        made.texts = self.texts
        return made


def make_calling(*texts: str) -> CallingModel:
    """The model, with the texts of its answers."""
    story = onnx_textgen.load(threads=1, device="cpu")
    model = CallingModel(story.folder, story.manifest, story.graph, chat_template=TEMPLATE)
    model.texts = list(texts)
    return model


def saying(model: Any, text: str) -> Callable[[list[int], Any], Any]:
    """A processor of logits that makes a model write a text."""
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    start: list[int] = []

    def processor(token_ids: list[int], logits: Any) -> Any:
        start[:] = start or [len(token_ids)]
        written = len(token_ids) - start[0]
        logits[ids[written] if written < len(ids) else model.tokenizer.eos_ids[0]] += np.float32(1e4)
        return logits

    return processor
