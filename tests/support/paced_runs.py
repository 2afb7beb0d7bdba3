"""A real, tiny model with a chat template, and runs of the graph that are as slow as a test wants, and fail where it wants."""

import dataclasses
import time

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.errors import ModelError
from onnx_textgen.inference.graph_runner import GraphRunner
from support.scripted_model import TINY_PACKAGE

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
PROBLEM = "the model failed while it ran: <b>no memory</b>"


def make_chatty(new_tokens):
    """Its texts end after so many tokens and not before."""
    plain = onnx_textgen.load(TINY_PACKAGE)
    manifest = dataclasses.replace(plain.manifest, eos_ids=(), generation={"max_new_tokens": new_tokens})
    return Model(plain.folder, manifest, plain.graph, chat_template=TEMPLATE)


class PacedRuns:
    """What every tab does with a model ends up here; set the fields while a test goes on."""

    def __init__(self, monkeypatch):
        self.seconds, self.fails_at = 0.0, None
        self.count, self.last = 0, time.monotonic()
        real = GraphRunner.run

        def run(runner, *arguments, **more):
            self.count, self.last = self.count + 1, time.monotonic()
            time.sleep(self.seconds)
            if self.count == self.fails_at:
                raise ModelError(PROBLEM)
            return real(runner, *arguments, **more)

        monkeypatch.setattr(GraphRunner, "run", run)

    @property
    def stand_still(self):
        """Whether there was none for so long that one would have come if any were to come."""
        return time.monotonic() - self.last > 5 * self.seconds + 0.3
