"""How a model makes vectors of texts and scores documents: what a checkpoint says in the settings of sentence-transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from ..errors import OptionError
from ..options.checks import shown
from ..text.prompts import Prompt

Pooling = Literal["mean", "weightedmean", "last", "cls", "max"]
"""How the vectors of a text's tokens become one: their mean, with weights 1, 2, 3 ... by position, the last one, the first one, or
the largest number in each place."""


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How an embedding model makes a vector of a text."""

    pooling: Literal[Pooling, "graph"] = "mean"
    """`graph`: the graph of a text encoder returns the vectors of texts, as its makers' modules pool and project them."""
    normalize: bool = True
    """Whether vectors have the length 1."""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    """What is written before a text, by the name of its purpose, such as `query`."""
    default_prompt_name: str | None = None
    """The prompt of a text for which none is named."""
    dimensions: int | None = None
    """Numbers of a vector that are kept; None: all."""
    similarity: str | None = None
    """How the vectors are compared: `cosine`, `dot` ..."""
    refused: str = ""
    """Why the model's vectors cannot be computed here; empty if they can."""


@dataclasses.dataclass(frozen=True, slots=True)
class RerankingSettings:
    """How a reranker scores a document for a query: by the logits of one or two answers after the prompt of its chat template.

    The template gets a message of the role `query` and one of the role `document`, and before them one of the role `system` if
    there is a prompt.
    """

    true_id: int
    """The token that means relevant."""
    false_id: int | None = None
    """The token that means not relevant; its logit is subtracted. None: the logit of `true_id` is the score."""
    activation: Literal["sigmoid", "identity"] = "sigmoid"
    """What is applied to the score; the sigmoid makes it the probability of `true_id` among the two."""
    add_generation_prompt: bool = False
    """Whether the template ends where an answer begins."""
    has_parts: bool = False
    """Whether the template takes the content of a message as a list of parts, not as a text."""
    prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    """Instructions, by name."""
    default_prompt_name: str | None = None
    """The prompt of a query for which none is named."""
    refused: str = ""
    """Why the model's scores cannot be computed here; empty if they can."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairScoring:
    """How a cross-encoder scores a document for a query: by the logit that its graph returns for both as a pair."""

    activation: Literal["sigmoid", "identity"] = "sigmoid"
    """What is applied to the score."""


def chosen_prompt(settings: EmbeddingSettings | RerankingSettings, prompt: str | None, prompt_name: str | None) -> str | None:
    """The prompt of a call, by its text or its name; else the default one. Raises `OptionError` for both, or an unknown name.

    >>> settings = EmbeddingSettings(prompts={"query": "Find: "})
    >>> chosen_prompt(settings, None, "query"), chosen_prompt(settings, "Q: ", None), chosen_prompt(settings, None, None)
    ('Find: ', 'Q: ', None)
    """
    if prompt is not None and prompt_name is not None:
        raise OptionError("prompt and prompt_name both say what is written before a text; give one of them")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise OptionError(f"prompt should be a text, found {shown(prompt)}")
        return prompt
    if prompt_name is None:
        return settings.prompts.get(settings.default_prompt_name) if settings.default_prompt_name else None
    if not isinstance(prompt_name, str) or prompt_name not in settings.prompts:
        names = ", ".join(settings.prompts)
        remedy = f"choose one of: {names}" if names else "this package has none; give the text itself as prompt"
        raise OptionError(f"there is no prompt {shown(prompt_name)}; {remedy}")
    return settings.prompts[prompt_name]


def with_prompt(
    settings: EmbeddingSettings, texts: Sequence[Prompt], prompt: str | None = None, prompt_name: str | None = None
) -> list[Prompt]:
    """Texts to embed, with the prompt of the call before each; ids that are given get none.

    Raises `OptionError` for a prompt that cannot take effect.

    >>> with_prompt(EmbeddingSettings(prompts={"query": "Find: "}), ["a dog"], prompt_name="query")
    ['Find: a dog']
    """
    chosen = chosen_prompt(settings, prompt, prompt_name) or ""
    if (prompt or prompt_name) and not all(isinstance(each, str) for each in texts):
        raise OptionError("a prompt is written before a text, and token ids were given; give the text, or leave the prompt out")
    return [chosen + each if isinstance(each, str) and each else each for each in texts]


def messages_of(settings: RerankingSettings, query: str, document: str, prompt: str | None = None) -> list[dict[str, object]]:
    """The messages from which a reranker's chat template makes its prompt.

    >>> messages_of(RerankingSettings(true_id=1), "capital of France", "Paris is in France.")[0]
    {'role': 'query', 'content': 'capital of France'}
    """
    said = {"system": prompt, "query": query, "document": document}
    return [
        {"role": role, "content": [{"type": "text", "text": text}] if settings.has_parts else text}
        for role, text in said.items()
        if text is not None
    ]
