"""The languages of a multilingual encoder-decoder (M2M100, NLLB, mBART): the tokens that name them, and where they stand.

They are read from the tokenizer: its special tokens that look like a language's code, and the place of such a token in an encoded
text. No table of models is needed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from ..errors import OptionError
from .tokenizer import TextTokenizer

CODE = re.compile(r"__([a-z]{2,3})__|([a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3})")
"""`__en__` as in M2M100, `en_XX` as in mBART, `eng_Latn` as in NLLB."""


class Languages:
    """The languages that a tokenizer has tokens for; empty for most models."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        matches = {token_id: CODE.fullmatch(content) for content, token_id in tokenizer.special_tokens.items()}
        self.ids: Mapping[str, int] = {found[1] or found[2]: token_id for token_id, found in matches.items() if found}
        """Token id by code: `en`, `en_XX`, `eng_Latn`."""

    def id_of(self, option: str, code: str) -> int:
        """The id of a language; raises `OptionError` for one that the model does not have."""
        if (found := self.ids.get(code)) is None:
            if not self.ids:
                raise OptionError(f"{option} is for models with tokens for languages, which this one does not have; leave it out")
            close = ", ".join(difflib.get_close_matches(code, self.ids, n=3) or list(self.ids)[:8])
            raise OptionError(f"{option} {code!r:.40} is no language of this model; take a code such as {close}")
        return found

    def source(self, text: str, code: str) -> list[int]:
        """A source text encoded with its language named, where the tokenizer names the one that it takes by default."""
        wanted = self.id_of("src_lang", code)
        whole, bare = (self.tokenizer.encode(text, add_special_tokens=special) for special in (True, False))
        start = next((at for at in range(len(whole) - len(bare) + 1) if whole[at : at + len(bare)] == bare), len(whole))
        around = [at for at in range(len(whole)) if not start <= at < start + len(bare)]
        known = set(self.ids.values())
        if not any(whole[at] in known for at in around):
            raise OptionError("this model's sources do not name their language; leave src_lang out")
        return [wanted if at in around and token_id in known else token_id for at, token_id in enumerate(whole)]

    def start(self, start_ids: Sequence[int], code: str) -> list[int]:
        """The ids that a text of this language begins with: its token replaces another language's, or follows the others."""
        wanted, known = self.id_of("tgt_lang", code), set(self.ids.values())
        if any(token_id in known for token_id in start_ids):
            return [wanted if token_id in known else token_id for token_id in start_ids]
        return [*start_ids, wanted]
