"""The embedded model, told what to write: calls of functions, and what it says after their results."""

from collections.abc import Callable
from typing import Any

import numpy as np

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.api.session import Session

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNREAD_TEMPLATE = TEMPLATE.replace("{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}", "")
"""Shows the tools, and not how calls are written."""
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


class ToldSession(Session):
    """Writes the next of its texts."""

    texts: list[str]
    most_tokens: int

    def stream_chat(self, **options: Any) -> Any:
        text = self.texts.pop(0) if self.texts else "Done."
        told = {"logits_processor": saying(self.opened, text), "temperature": 0, "max_new_tokens": self.most_tokens}
        return super().stream_chat(cancel=options.get("cancel"), **told)


class CallingModel(Model):
    """Writes given texts, one answer after the other, then "Done."."""

    texts: list[str]
    most_tokens: int

    def session(self, **inputs: Any) -> ToldSession:
        made = ToldSession(self.generator, inputs)  # type: ignore[arg-type]  # the names are checked there
        made.texts, made.most_tokens = self.texts, self.most_tokens
        return made


def make_calling(*texts: str, most_tokens: int = 400, template: str = TEMPLATE) -> CallingModel:
    """The model, with the texts of its answers, each cut off after so many tokens."""
    story = onnx_textgen.load(threads=1, device="cpu")
    model = CallingModel(story.folder, story.manifest, story.graph, chat_template=template)
    model.texts, model.most_tokens = list(texts), most_tokens
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
