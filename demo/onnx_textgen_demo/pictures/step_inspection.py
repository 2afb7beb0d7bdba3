"""Runs a prompt through the pipeline step by step, and keeps every step so that a reader can go back and choose again.

The logits of each step are kept: another temperature or truncation applies to them, and the model does not run again.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from onnx_textgen.diagnostics.inspection import (
    SamplingInspection,
    Step,
    Token,
    context_after,
    inspect_sampling,
    inspect_step,
    source_and_beginning,
    tokens_of,
)
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.sampling.sampler import Chooser

from .layer_numbers import LayerNumbers, layer_numbers

if TYPE_CHECKING:
    from onnx_textgen import Model
    from onnx_textgen.options.generation_config import GenerationConfig
    from onnx_textgen.tasks.attention_maps import AttentionMaps

CANDIDATES = 12
"""Number of bars of a distribution."""
ATTENTION_ROWS = 32
"""Number of rows of the attention map of a long text; the last tokens."""


@dataclasses.dataclass(slots=True)
class InspectedStep:
    """One run of the model, and the choice of a token from it."""

    run: Step
    """The fed tokens and the cache; its choice is the first one made."""
    logits: Logits
    layers: tuple[LayerNumbers, ...]
    """Keys and values that the run computed for its last token."""
    sampling: SamplingInspection
    """The current choice."""


@functools.lru_cache(maxsize=4)
def attention_of(model: Model, token_ids: tuple[int, ...], source_ids: tuple[int, ...] = ()) -> AttentionMaps:
    """The attention maps of a text, with rows for its last `ATTENTION_ROWS` tokens; of an encoder-decoder after a source.

    The maps of the last few texts, of all visitors, are cached, so that choosing another head does not run the model. Raises
    `PackageError` for a package without attention maps, and `PromptError`.
    """
    return model.attentions(token_ids, source=source_ids or None, last=ATTENTION_ROWS)


class StepInspector:
    """A prompt, and the steps that chose tokens after it. For one thread at a time.

    An encoder-decoder reads the prompt as its source, and the steps choose the tokens of the text that it writes.
    """

    def __init__(self, model: Model, prompt: str, config: GenerationConfig) -> None:
        """`config` needs a seed. Raises `PromptError` for a prompt that the model refuses."""
        self.model, self.prompt, self.config = model, prompt, config
        self.source_ids, self.ids = source_and_beginning(model, prompt, config)
        self.tokens: list[Token] = tokens_of(model, self.source_ids or self.ids)
        """Those of the prompt."""
        self.steps: list[InspectedStep] = []
        self.decoder = context_after(model, self.source_ids)
        self.layer = self.head = 0
        """Layer and head whose attention is shown."""

    def chosen_before(self, number: int) -> list[int]:
        """The ids of the new tokens before that step (0 = the first)."""
        return [step.sampling.chosen.id for step in self.steps[:number]]

    def can_step(self) -> bool:
        """Whether another step is possible: the text has not ended, and the context is not full."""
        ended = bool(self.steps) and self.steps[-1].sampling.chosen.id in self.model.manifest.eos_ids
        return not ended and len(self.ids) + len(self.steps) < self.model.manifest.geometry.context_length

    def step(self) -> None:
        """Run the model on the new tokens, and choose the next one."""
        new_ids = self.chosen_before(len(self.steps))
        chooser, first = self.chooser(), self.decoder.reusable(self.ids + new_ids)
        logits = prefill(self.decoder, self.ids + new_ids).copy()
        run = inspect_step(self.model, self.decoder, logits, chooser, new_ids, first=first, limit=CANDIDATES)
        sampling = inspect_sampling(self.model, logits, chooser, new_ids, limit=CANDIDATES)
        self.steps.append(InspectedStep(run, logits, layer_numbers(self.decoder), sampling))

    def choose_again(self, number: int, config: GenerationConfig) -> None:
        """Apply other options to a step. If another token is chosen, the later steps are dropped."""
        self.config = config
        if number >= len(self.steps):
            return
        step = self.steps[number]
        before = step.sampling.chosen.id
        new_ids = self.chosen_before(number)
        step.sampling = inspect_sampling(self.model, step.logits, self.chooser(), new_ids, limit=CANDIDATES)
        if step.sampling.chosen.id != before:
            del self.steps[number + 1 :]

    def select_head(self, layer: int, head: int) -> None:
        """Choose the layer and head whose attention is shown; numbers out of range are clamped."""
        geometry = self.model.manifest.geometry
        self.layer, self.head = (max(0, min(n, size - 1)) for n, size in ((layer, geometry.layers), (head, geometry.heads)))

    def attention(self, number: int) -> AttentionMaps:
        """The attention maps of the text before a step's new token; raises the errors of `attention_of`."""
        beginning = [] if self.source_ids else self.ids  # `Model.attentions` knows what a text after a source begins with
        return attention_of(self.model, (*beginning, *self.chosen_before(number)), tuple(self.source_ids))

    def chooser(self) -> Chooser:
        """The sampler for the current options."""
        manifest = self.model.manifest
        return Chooser(
            self.config,
            prompt_ids=self.ids,
            eos_ids=manifest.eos_ids,
            piece=self.model.tokenizer.piece,
        )
