"""Encodes a prompt, or a prompt with its continuation, to token ids that the model accepts, and refuses all others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..errors import ImageError, OptionError, PromptError
from ..images.image_rows import LOWEST, ReadImage
from ..images.in_messages import expanded, placed
from ..inference.scoring import split_pair
from ..options.checks import shown
from ..options.generation_config import GenerationConfig
from ..text.languages import Languages
from ..text.prompts import LongPromptError, Prompt, check_characters, check_vocabulary, read_token_ids
from .open_model import OpenModel


class PromptEncoder:
    """Encodes prompts for one open model."""

    def __init__(self, opened: OpenModel) -> None:
        self.opened = opened
        geometry = opened.manifest.geometry
        self.context_length, self.vocab_size = geometry.context_length, geometry.vocab_size

    def encode(self, prompt: Prompt, *, images: Sequence[object] = (), new_tokens: int = 1, any_length: bool = False) -> list[int]:
        """One prompt's token ids, after checks: not empty, in the vocabulary, and the context has space for `new_tokens` more.

        A text encoder's are cut as its makers cut them.
        `any_length` skips the check of the context. Raises `PromptError`.
        """
        if images:
            prompt = self.with_images(prompt, images)
        if isinstance(prompt, str):
            if not prompt:
                bos_id = self.opened.manifest.bos_id
                begin = f", or only the begin token: [{bos_id}]" if bos_id is not None else ""
                raise PromptError(f"the prompt is empty; give some text{begin}")
            if self.opened.manifest.text_encoder is not None:
                return self.encode_whole(prompt)[0]
            if not any_length:
                check_characters(prompt, self.context_length)
            ids = self.opened.tokenizer.encode(prompt)
        else:
            ids = read_token_ids(prompt)
        check_vocabulary(ids, self.vocab_size, 0 if self.opened.images is None else LOWEST)
        if len(ids) + new_tokens > self.context_length and not any_length:
            most = self.context_length - new_tokens
            raise LongPromptError(f"the prompt has {len(ids):,} tokens; this model takes {most:,} at most. Shorten it")
        return ids

    def with_images(self, prompt: Prompt, pictures: Sequence[object]) -> list[int]:
        """Token ids of a text with pictures; see `Model.encode`."""
        if not isinstance(prompt, str):
            raise ImageError("pictures belong to a prompt that is text; give ids that have their rows, or a text")
        about = self.opened.manifest.images
        if self.opened.images is None or about is None:
            raise ImageError(f"{self.opened.manifest.name} reads text alone; leave the pictures out")
        text, missing = prompt, len(pictures) - prompt.count(about.placeholder)
        text = about.placeholder * max(missing, 0) + text
        if missing < 0:
            raise ImageError(f"the text has more places {about.placeholder} than there are pictures ({len(pictures)})")
        images = self.read_pictures(pictures)
        return placed(self.opened.tokenizer.encode(expanded(text, images, about)), images, about)

    def read_pictures(self, sources: Sequence[object]) -> list[ReadImage]:
        """Read pictures; raises `LongPromptError` for more than fit in the context, before further ones are read."""
        reader, about = self.opened.images, self.opened.manifest.images
        assert reader is not None and about is not None, "the caller has checked"
        count, images, tokens = len(sources), list[ReadImage](), 0
        for source in sources:
            if (least := tokens + 1 if about.varies else count * about.tokens) >= self.context_length:
                taken = "at least " * about.varies + f"{least:,}"
                raise LongPromptError(
                    f"{count:,} pictures take {taken} tokens; this model takes {self.context_length:,}. Leave some out"
                )
            images.append(reader.read(source))
            tokens += len(images[-1].ids)
        return images

    def refuse_images(self, ids: Sequence[int], what: str) -> None:
        """Raise `ImageError` for ids of pictures, where only text is possible."""
        if min(ids, default=0) < 0:
            raise ImageError(f"{what} of text alone; leave the pictures out")

    def encode_whole(self, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
        """Token ids and types of what a text encoder reads, cut as its makers cut it; raises `PromptError` if there are none."""
        about = self.opened.manifest.text_encoder
        assert about is not None, "the caller has checked"
        ids, types = self.opened.tokenizer.encode_within(about.most_tokens, text, pair)
        if not ids:
            raise PromptError("the text has no tokens; give one that is not blank")
        check_vocabulary(ids, self.vocab_size)
        return ids, types

    def encode_source(self, source: Prompt, language: str | None = None) -> list[int]:
        """Token ids of the text that an encoder-decoder reads, checked: not empty, in the vocabulary, not too long.

        `language`: the code of its language. Raises `PromptError`, and `OptionError` for a language that the model does not have.
        """
        about = self.opened.manifest.encoder
        assert about is not None, "the caller has checked"
        if isinstance(source, str) and source:
            check_characters(source, about.source_length)
        ids = self.encode(source, any_length=True)
        if language is not None:
            if not isinstance(source, str):
                raise OptionError("src_lang is for a source that is text; ids name their language themselves")
            ids = self.languages.source(source, language)
        if len(ids) > about.source_length:
            raise PromptError(f"the source has {len(ids):,} tokens; this model reads {about.source_length:,} at most. Shorten it")
        return ids

    def encode_infill(self, prefix: str, suffix: str, *, suffix_first: bool | None = None) -> list[int]:
        """Token ids of a prompt for the text between a prefix and a suffix; see `Model.encode_infill`."""
        self.opened.require_decoder("has no prefix and suffix")
        tokenizer = self.opened.tokenizer
        if tokenizer.infill is None:
            name = self.opened.manifest.name
            raise PromptError(f"{name} has no control tokens for a suffix; give it a text that it continues, without a suffix")
        check_characters(prefix + suffix, self.context_length)
        before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
        beginning = [tokenizer.bos_id] if tokenizer.bos_id is not None and tokenizer.encode("")[:1] == [tokenizer.bos_id] else []
        return self.encode([*beginning, *tokenizer.infill.prompt(before, after, suffix_first=suffix_first)])

    def encode_pair(
        self, text: Prompt, continuation: str | Sequence[int] | None, *, any_length: bool = False
    ) -> tuple[list[int], int]:
        """Token ids of a text with its continuation, and the number of the text's ids; 0 without a continuation."""
        if continuation is None:
            return self.encode(text, new_tokens=0, any_length=any_length), 0
        if isinstance(text, str) != isinstance(continuation, str):
            raise PromptError("of prompt and continuation, one is text and one is ids; give both as text, or both as ids")
        if isinstance(text, str) and isinstance(continuation, str):
            self.encode(text + continuation, new_tokens=0, any_length=any_length)
            return split_pair(self.opened.tokenizer.encode, text, continuation)
        prompt_ids = self.encode(text, new_tokens=0, any_length=any_length)
        return self.encode([*prompt_ids, *read_token_ids(continuation)], new_tokens=0, any_length=any_length), len(prompt_ids)

    @functools.cached_property
    def languages(self) -> Languages:
        """The languages of the package's tokenizer."""
        return Languages(self.opened.tokenizer)

    def start_ids(self, language: str | None = None) -> list[int]:
        """The ids that a text of an encoder-decoder begins with; raises `OptionError` for a language that it does not have."""
        about = self.opened.manifest.encoder
        assert about is not None, "the caller has checked"
        return list(about.start_ids) if language is None else self.languages.start(about.start_ids, language)

    def encode_target(self, target: Prompt) -> list[int]:
        """Token ids of a text that an encoder-decoder may write, with its beginning and, of a text, the end.

        An empty list of ids is the beginning alone.
        """
        if not isinstance(target, str):
            ids = read_token_ids(target) if len(target) else []
        elif target:
            ids = [*self.opened.tokenizer.encode(target, add_special_tokens=False), *self.opened.manifest.eos_ids[:1]]
        else:
            raise PromptError("the text is empty; give some text")
        return self.encode([*self.start_ids(), *ids], new_tokens=0)

    def check_options(self, config: GenerationConfig) -> None:
        """Raise `OptionError` for an option with an id outside the vocabulary, or one that needs a tokenizer if there is none."""
        if config.stop and self.opened.optional_tokenizer is None:
            raise OptionError("stop strings need a tokenizer, which this package does not have; stop by max_new_tokens")
        named = {
            "logit_bias": [token_id for token_id, _ in config.logit_bias],
            "bad_words_ids": [token_id for each in config.bad_words_ids for token_id in each],
        }
        for name, ids in named.items():
            if ids and max(ids) >= (size := self.vocab_size):
                raise OptionError(
                    f"{name} names id {shown(max(ids))}, which is outside the vocabulary; ids go from 0 to {size - 1}"
                )
