"""A SentencePiece model as a `tokenizers` pipeline with the same ids, and the original to compare it with.

transformers 5 reads these files too, but differently: it leaves out the prefix space if a text begins with a space (57 of 640 texts
get other ids with the Llama 2 vocabulary). `equivalence` compares both on probe texts, and so detects what a `tokenizers` pipeline
cannot express.

Order of the steps as in SentencePiece's normalizer.cc: character map, superfluous spaces, prefix, spaces to U+2581.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from onnx_textgen.errors import first_line

from ..errors import ExportError

GIVE_TOKENIZER = "give a tokenizer.json with --tokenizer"
Message: TypeAlias = Any
"""A protobuf message, whose class is created at import."""

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
ONLY_WRITTEN = "\ufdd0"
"""Before pieces that the model has no score for, so that no text is split into them: Unicode reserves it for such uses."""
BYTE_IN_TEXT = "<(?=0x[0-9A-F]{2}>)"
"""The start of a byte piece's name in a text, such as <0x41>."""


@dataclasses.dataclass(frozen=True, slots=True)
class Original:
    """SentencePiece's own processor."""

    processor: Any
    unknown_id: int
    cuts: frozenset[str]
    """User-defined pieces, which are matched in a text first."""
    begin: str | None
    end: str | None

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        return [int(token_id) for token_id in self.processor.encode(text)]

    def decode(self, ids: list[int]) -> str | None:
        """The text of ids; None if an unknown piece replaces lost text."""
        return None if self.unknown_id in ids else str(self.processor.decode(ids))


@dataclasses.dataclass(frozen=True, slots=True)
class Renumbered:
    """SentencePiece's own processor, whose pieces have other ids in the model."""

    original: Original
    ids: tuple[int | None, ...]
    """The model's id of each piece; None for one that no text is split into."""

    @property
    def cuts(self) -> frozenset[str]:
        """See `Original.cuts`."""
        return self.original.cuts

    def encode(self, text: str) -> list[int]:
        """Ids without begin and end tokens."""
        return [token_id for piece in self.original.encode(text) if (token_id := self.ids[piece]) is not None]

    def decode(self, ids: list[int]) -> str | None:
        """The text of ids; None if an unknown piece replaces lost text."""
        pieces = {token_id: piece for piece, token_id in enumerate(self.ids)}
        return self.original.decode([pieces[token_id] for token_id in ids])


def open_model(path: Path, ids: Container[str] | None = None) -> tuple[Message, Original]:
    """The parsed model and SentencePiece's processor of it, which splits no text into pieces that are not in `ids`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the binding generator, at import
        try:
            from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2  # noqa: PLC0415
        except ImportError as error:
            raise ExportError(f"{path} needs SentencePiece; install it with: pip install sentencepiece protobuf") from error
    messages: Any = sentencepiece_model_pb2
    parsed = messages.ModelProto()
    try:
        parsed.ParseFromString(path.read_bytes())
        for piece in parsed.pieces:
            if ids is not None and piece.type == NORMAL and piece.piece not in ids:
                piece.type = UNUSED
        processor = SentencePieceProcessor(model_proto=parsed.SerializeToString())
    except Exception as error:
        raise ExportError(f"{path} is not a SentencePiece model ({first_line(error)}); {GIVE_TOKENIZER}") from error
    begin, end = processor.bos_id(), processor.eos_id()
    return parsed, Original(
        processor,
        unknown_id=processor.unk_id(),
        cuts=frozenset(piece.piece for piece in parsed.pieces if piece.type == USER_DEFINED),
        begin=processor.id_to_piece(begin) if begin >= 0 else None,
        end=processor.id_to_piece(end) if end >= 0 else None,
    )


def rank_merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to merge two pieces into one of `scores`, the best piece first: SentencePiece merges the highest score.

    >>> rank_merges({"a": -9.0, "b": -9.0, "ab": -1.0, "abb": 0.0})
    [('ab', 'b'), ('a', 'b')]
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):  # stable: equal scores keep the order of ids
        for cut in range(1, len(piece)):
            if piece[:cut] in scores and piece[cut:] in scores:
                merges.append((piece[:cut], piece[cut:]))
    return merges


def build_model(parsed: Message, names: list[str], path: Path, ids: Mapping[str, int] | None) -> models.Model:
    """The BPE or Unigram model; `names` are the texts of the pieces, and `ids` the model's ids, if those are others."""
    spec = parsed.trainer_spec
    unknown = next((index for index, piece in enumerate(parsed.pieces) if piece.type == UNKNOWN), None)
    if spec.model_type == BPE:
        if ids is not None and any(piece.type == UNUSED for piece in parsed.pieces):
            raise ExportError(f"{path} has pieces without an id, which a BPE model cannot leave out; {GIVE_TOKENIZER}")
        scores = {name: piece.score for name, piece in zip(names, parsed.pieces, strict=True) if piece.type == NORMAL}
        return models.BPE(
            vocab={name: index for index, name in enumerate(names)} if ids is None else dict(ids),
            merges=rank_merges(scores),
            unk_token=None if unknown is None else names[unknown],
            fuse_unk=True,
            byte_fallback=spec.byte_fallback,
        )
    if spec.model_type == UNIGRAM:
        vocab = [(name, piece.score) for name, piece in zip(names, parsed.pieces, strict=True)]
        if ids is not None and unknown is not None:
            if names[unknown] not in ids:
                raise ExportError(f"{path} has no id for unknown text; {GIVE_TOKENIZER}")
            scores = {name: score for name, score in vocab if name in ids}
            lowest = min(scores.values())  # a lower one would change that of unknown text
            vocab = [(name, scores.get(name, lowest)) for name in sorted(ids, key=lambda name: ids[name])]
            unknown = ids[names[unknown]]
        return models.Unigram(vocab, unk_id=unknown, byte_fallback=spec.byte_fallback)
    raise ExportError(f"{path} splits words or characters; only BPE and Unigram SentencePiece models have a tokenizer.json form")


def build_normalizer(spec: Message, *, prefix: bool) -> normalizers.Normalizer:
    """The steps before splitting. Patterns are Oniguruma's, where ^ and $ would match at every line."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def build_splitter(parsed: Message) -> pre_tokenizers.PreTokenizer | None:
    """Prevents Unigram from reading the name of a byte piece in a text as that byte; BPE has no merges that do so."""
    spec = parsed.trainer_spec
    if spec.model_type != UNIGRAM or not spec.byte_fallback or any(p.type == NORMAL and "<0" in p.piece for p in parsed.pieces):
        return None
    return pre_tokenizers.Split(Regex(BYTE_IN_TEXT), "merged_with_previous")


def build_decoder(parsed: Message, *, marks: bool) -> decoders.Decoder:
    """Pieces to text: spaces, bytes, and without the prefix space; `marks`: whether pieces have the mark `ONLY_WRITTEN`."""
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), *([decoders.Replace(ONLY_WRITTEN, "")] if marks else [])]
    if parsed.trainer_spec.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if parsed.normalizer_spec.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def convert_sentencepiece(
    path: Path, renamed: Mapping[int, str], *, prefix_after_special: bool = True, ids: Mapping[str, int] | None = None
) -> tuple[Tokenizer, Original]:
    """A tokenizer with the ids of SentencePiece's model, and the original.

    ids: if the checkpoint numbers pieces otherwise, the id of each piece and of further tokens, from 0 without gaps. Pieces that it
    lacks are not used, as with SentencePiece's own option `vocabulary`.

    renamed: pieces to which the checkpoint gives another text, by SentencePiece's id. prefix_after_special: whether text after a
    special token also gets the prefix space; if not (`"legacy": false`), one leading space of a text counts as the prefix, as in
    transformers, because a `tokenizers` pipeline has no step for the exact rule.
    """
    parsed, original = open_model(path, ids)
    names = [renamed.get(index, piece.piece) for index, piece in enumerate(parsed.pieces)]
    tokenizer = Tokenizer(build_model(parsed, names, path, ids))
    spec, splitter = parsed.normalizer_spec, build_splitter(parsed)
    first_only = spec.add_dummy_prefix and not prefix_after_special
    tokenizer.normalizer = build_normalizer(spec, prefix=spec.add_dummy_prefix and prefix_after_special)
    if first_only and splitter is None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    elif splitter is not None:
        tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = build_decoder(parsed, marks=ids is not None and any(name.startswith(ONLY_WRITTEN) for name in ids))
    for name, piece in zip(names, parsed.pieces, strict=True):
        if piece.type in (UNKNOWN, CONTROL, USER_DEFINED) and (ids is None or name in ids):
            tokenizer.add_tokens([AddedToken(name, normalized=False, special=piece.type != USER_DEFINED)])
    return tokenizer, original
