"""One prompt's way through the pipeline, token by token, kept so that one can go back and choose otherwise.

Each run of the model is kept with its logits: another temperature or cut is applied to them, the model does not run again.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from onnx_textgen.diagnostics.inspection import Step, Token, Weighing, look_at_step, tokens_of, weigh
from onnx_textgen.inference.graph_runner import Logits
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.sampling.sampler import Chooser

if TYPE_CHECKING:
    from onnx_textgen import Model
    from onnx_textgen.inference.attention_maps import AttentionMaps
    from onnx_textgen.options.generation_config import GenerationConfig

CANDIDATES = 12
"""Bars of a distribution."""
LOOKING = 32
"""Tokens of a long text whose attention is shown; the last ones."""


@dataclasses.dataclass(slots=True)
class Look:
    """One run of the model, and the choice that followed."""

    run: Step
    """What was fed and what the cache held; its choice is the first one made."""
    logits: Logits
    weighing: Weighing
    """The choice as it is now."""


@functools.lru_cache(maxsize=4)
def attention_of(model: Model, token_ids: tuple[int, ...]) -> AttentionMaps:
    """Who looks at whom in a text: rows for its last `LOOKING` tokens.

    Those of the last few texts, of all visitors, are kept, so that the model does not run for another head. Raises `PackageError`
    for a package without attention maps, and `PromptError`.
    """
    return model.attentions(token_ids, last=LOOKING)


class Walk:
    """A prompt, and the tokens that were chosen after it. Not for several threads at once."""

    def __init__(self, model: Model, prompt: str, config: GenerationConfig) -> None:
        """`config` has its seed drawn. Raises `PromptError` for a prompt that the model does not take."""
        self.model, self.prompt, self.config = model, prompt, config
        self.ids = model.encode(prompt)
        self.tokens: list[Token] = tokens_of(model, self.ids)
        self.looks: list[Look] = []
        self.decoder = model.new_context()
        self.layer = self.head = 0
        """Whose attention is looked at."""

    def chosen_before(self, number: int) -> list[int]:
        """The ids of the new tokens before that step (0 = the first)."""
        return [look.weighing.chosen.id for look in self.looks[:number]]

    def can_step(self) -> bool:
        """Whether the text may go on behind the last step: it has not ended, and the context has room."""
        ended = bool(self.looks) and self.looks[-1].weighing.chosen.id in self.model.manifest.eos_ids
        return not ended and len(self.ids) + len(self.looks) < self.model.manifest.geometry.context_length

    def step(self) -> None:
        """Run the model on what is new, and choose a token."""
        new_ids = self.chosen_before(len(self.looks))
        chooser, first = self.chooser(), self.decoder.reusable(self.ids + new_ids)
        logits = prefill(self.decoder, self.ids + new_ids).copy()
        run = look_at_step(self.model, self.decoder, logits, chooser, new_ids, first=first, limit=CANDIDATES)
        self.looks.append(Look(run, logits, weigh(self.model, logits, chooser, new_ids, limit=CANDIDATES)))

    def choose_again(self, number: int, config: GenerationConfig) -> None:
        """Apply other options to a step. What followed another token than the one now chosen is forgotten."""
        self.config = config
        if number >= len(self.looks):
            return
        look = self.looks[number]
        before = look.weighing.chosen.id
        look.weighing = weigh(self.model, look.logits, self.chooser(), self.chosen_before(number), limit=CANDIDATES)
        if look.weighing.chosen.id != before:
            del self.looks[number + 1 :]

    def look_at(self, layer: int, head: int) -> None:
        """Choose whose attention is looked at; what there is none of becomes the last there is."""
        geometry = self.model.manifest.geometry
        self.layer, self.head = (max(0, min(n, size - 1)) for n, size in ((layer, geometry.layers), (head, geometry.heads)))

    def attention(self, number: int) -> AttentionMaps:
        """Who looks at whom in the text of a step, its new token not included; raises what `attention_of` raises."""
        return attention_of(self.model, (*self.ids, *self.chosen_before(number)))

    def chooser(self) -> Chooser:
        """What chooses the tokens."""
        manifest = self.model.manifest
        return Chooser(
            self.config,
            prompt_ids=self.ids,
            eos_ids=manifest.eos_ids,
            piece=self.model.tokenizer.piece,
        )
