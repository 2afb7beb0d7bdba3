"""A callable for batch engines: takes a batch of prompts, returns the batch with texts, the same on every worker."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..cancellation import CancelScope
from ..errors import OptionError
from ..generation.request import Request
from ..options.checks import whole_number
from ..options.generation_config import GenerationConfig
from ..options.merging import make_generation_config
from ..results import Generation
from ..text.prompts import items_of
from .loading import load
from .model import Model

LOADING = threading.Lock()
"""Makes the threads of one worker load the model once."""


class BatchGenerator:
    """Generates a text for each row of a batch; it can be pickled, and each process loads the model at the first call.

    A row's text depends only on its prompt and its seed: not on the other rows, nor on how rows are divided among workers. A row
    without a seed gets one computed from its prompt and `seed`, so equal prompts get equal texts; a column of seeds makes them
    differ.

    >>> generate = BatchGenerator("story", max_new_tokens=5, seed=1)
    >>> generate({"prompt": ["Once upon a time", "The dog"]})["finish_reason"]
    ['length', 'length']
    """

    def __init__(
        self,
        package: str | Path | None = None,
        *,
        prompt: str = "prompt",
        output: str = "generated_text",
        seed_column: str = "seed",
        seed: int = 0,
        device: str = "auto",
        threads: int | None = None,
        batch_size: int = 8,
        **options: Any,  # noqa: ANN401 - those of GenerationConfig, checked below
    ) -> None:
        """`prompt`, `output`, `seed_column`: names of columns; `options`: those of `GenerationConfig`, with one text per prompt.

        Raises `OptionError` here, before any worker starts.
        """
        self.package, self.columns = package, (prompt, output, seed_column)
        self.seed = whole_number("seed", seed, 0)
        self.loading = {"device": device, "threads": threads, "batch_size": batch_size}
        config = make_generation_config({}, options)
        if config.has_several_texts:
            raise OptionError("a batch has one text for each row; leave out num_beams, num_return_sequences and best_of")
        self.options = dict(options)
        self._model: Model | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the model, which the other process loads itself."""
        return {**self.__dict__, "_model": None}

    @property
    def model(self) -> Model:
        """The model; the first use loads it."""
        with LOADING:
            if self._model is None:
                self._model = load(self.package, **self.loading)  # type: ignore[arg-type]
            return self._model

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Generate, and return the batch's columns with three more: the texts, `finish_reason` and `generated_tokens`.

        Columns are lists, arrays or any other sequences; a prompt is a text or token ids. Raises `OptionError` for a batch without
        a column of prompts or with fewer or more seeds than prompts, `PromptError` for a prompt of another type.
        """
        prompt, output, seed_column = self.columns
        if prompt not in batch:
            raise OptionError(
                f"the batch has no column {prompt!r}, but {', '.join(map(repr, batch)) or 'none'}; name it with prompt="
            )
        prompts = items_of(batch[prompt])
        seeds = items_of(batch[seed_column]) if seed_column in batch else [self.seed_of(each) for each in prompts]
        if len(seeds) != len(prompts):
            raise OptionError(f"the batch has {len(prompts)} prompts and {len(seeds)} seeds; give one for each")
        found = self.generate(prompts, seeds)
        return {
            **batch,
            output: [each.text for each in found],
            "finish_reason": [each.finish_reason for each in found],
            "generated_tokens": [len(each.token_ids) for each in found],
        }

    def seed_of(self, prompt: object) -> int:
        """A seed computed from the prompt, the same on every worker."""
        text = prompt if isinstance(prompt, str) else ",".join(map(str, items_of(prompt)))
        return int.from_bytes(hashlib.sha256(f"{self.seed}\n{text}".encode("utf-8", "surrogatepass")).digest()[:4], "big") >> 1

    def generate(self, prompts: Sequence[Any], seeds: Sequence[Any]) -> list[Generation]:
        """Generate a text for each prompt, each with its seed."""
        configs = [self.config(self.model, seed) for seed in seeds]
        generator = self.model.generator.for_adapter(self.options.get("adapter"))
        rows = [generator.begin(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        generator.engine.finish([Request(row, CancelScope(None, row.config.max_time), streams=False, caller=rows) for row in rows])
        return [row.result() for row in rows]

    def config(self, model: Model, seed: object) -> GenerationConfig:
        """The options with a row's seed; a seed from an array is converted to int."""
        return model.generator.config({**self.options, "seed": int(seed) if hasattr(seed, "__index__") else seed})
