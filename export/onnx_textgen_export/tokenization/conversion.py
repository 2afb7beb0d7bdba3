"""The tokenizer of a checkpoint folder as one `tokenizer.json`, from whichever files the folder has.

- `tokenizer.json` is used directly, with the added tokens of `tokenizer_config.json` and without truncation and padding.
- A SentencePiece model is converted by `sentencepiece`.
- `vocab.json` with `merges.txt`, and `vocab.txt`, are converted by transformers.

Each is then compared with the original (`equivalence`). transformers' own reading of a `tokenizer.json` is not used: for Llama-like
classes it rebuilds the tokenizer, with other ids for texts that begin with a space.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json, read_tokenizer_settings, token_text
from onnx_textgen.package.manifest import TOKENIZER

from ..errors import ExportError
from .equivalence import ByteLevelBPE, Reference, SameFile, prove_tokenizer
from .probe_texts import PROBES
from .sentencepiece import GIVE_TOKENIZER, NORMAL, ONLY_WRITTEN, Renumbered, convert_sentencepiece, open_model
from .transformers_tokenizers import WordPiece, class_name_of, from_transformers, numbering_of

MARIAN = "source.spm"
"""With this file Marian's tokenizer splits sources; its `vocab.json` has the ids of these pieces and of those of the target."""
SENTENCEPIECE = (MARIAN, "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
SHIFTED = frozenset(
    {"Marian", "XGLM", "XLMRoberta", "MBart", "MBart50", "Nllb", "Camembert", "Barthez", "Pegasus", "SeamlessM4T"}
    | {"M2M100", "PLBart"}
)
"""Tokenizer classes of transformers that give the pieces of the SentencePiece model other ids."""
MOST_MISSING = 0.1
"""The largest share of pieces without an id: Marian's vocabularies lack those that its training text did not have."""
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
MOST_CUTS = 64
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer(path: Path) -> Tokenizer:
    """Open a tokenizer.json, without the truncation and padding it may ask for."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ExportError(f"{path} is not a tokenizer.json: {first_line(error)}") from error
    return unlimited(tokenizer)


def unlimited(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, without truncation and padding."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file(folder: Path) -> str | None:
    """The name of the file that holds the folder's tokenizer; None if there is none."""
    return next((name for name in (TOKENIZER, *SENTENCEPIECE, "vocab.json", "vocab.txt") if (folder / name).is_file()), None)


def convert_tokenizer(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer, proved equal to the original; None if the folder has none.

    Raises `ExportError` for a kind without an exact `tokenizer.json` form, naming a text that differs.
    """
    settings = read_tokenizer_settings(folder)
    name = tokenizer_file(folder)
    if name is None:
        return None
    path = folder / name
    probes: tuple[str, ...] = PROBES
    if name == TOKENIZER:
        original: Reference = SameFile(path)
        tokenizer = add_tokens(read_tokenizer(path), settings, path)
    elif name in SENTENCEPIECE:
        tokenizer, original = from_sentencepiece(path, settings)
        if settings.get("legacy") is False:
            probes = tuple(text for text in PROBES if not text.startswith((" ", "\N{LOWER ONE EIGHTH BLOCK}")))
        probes += tuple(f"a{token}b" for token in sorted(original.cuts)[:MOST_CUTS])
    else:
        usual = "BertTokenizer" if name == "vocab.txt" else "GPT2Tokenizer"
        tokenizer = add_tokens(unlimited(from_transformers(folder, settings, usual)), settings, path)
        original = WordPiece(path, settings) if name == "vocab.txt" else ByteLevelBPE(folder, tokenizer)
        probes = tuple(
            text for text in PROBES if "\U0010ffff" not in text
        )  # implementations differ on whether it is a control character
    prove_tokenizer(tokenizer, original, str(path), probes)
    return tokenizer


def class_of(settings: Mapping[str, Any], folder: Path) -> str:
    """The tokenizer's class without its suffix, such as Llama or T5; "" if no file names one."""
    name = settings.get("tokenizer_class")
    if not name:
        name = class_name_of(read_json(folder / "config.json").get("model_type", ""))
    return str(name or "").removesuffix("Fast").removesuffix("Tokenizer")


def added_tokens(settings: Mapping[str, Any], folder: Path) -> dict[int, AddedToken]:
    """The tokens that a checkpoint adds to its vocabulary, by id, in the order of ids."""
    found = {int(token_id): AddedToken(text, special=False) for text, token_id in read_json(folder / "added_tokens.json").items()}
    for token_id, token in settings.get("added_tokens_decoder", {}).items():
        found[int(token_id)] = AddedToken(token["content"], **{flag: token[flag] for flag in FLAGS if flag in token})
    return dict(sorted(found.items()))


def add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> Tokenizer:
    """Add the tokens of the settings to `tokenizer`, each at its given id; an existing token takes their flags."""
    for token_id, token in added_tokens(settings, path.parent).items():
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise ExportError(
                f"{path} gives the added token {token.content!r} the id {tokenizer.token_to_id(token.content)} and its settings "
                f"say {token_id}; correct tokenizer_config.json or {GIVE_TOKENIZER}"
            )
    have = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for name in NAMED:
        text = token_text(settings.get(name))
        if text and text not in have and tokenizer.token_to_id(text) is not None:
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    return tokenizer


def renumbered(path: Path, name: str) -> tuple[Tokenizer, Reference]:
    """Convert a SentencePiece model whose pieces have other ids: those of transformers' class `name`, and its frame of a text.

    No text is split into a piece of Marian's that has no id; transformers would emit the unknown id.
    """
    numbering = numbering_of(path.parent, f"{name}Tokenizer")
    if sorted(numbering.ids.values()) != list(range(len(numbering.ids))):
        raise ExportError(f"{name}Tokenizer leaves out ids; {GIVE_TOKENIZER}")
    parsed = open_model(path)[0].pieces
    pieces = [piece.piece for piece in parsed]
    missing = [each.piece for each in parsed if each.piece not in numbering.ids and (path.name != MARIAN or each.type == NORMAL)]
    if missing and (path.name != MARIAN or len(missing) > MOST_MISSING * len(pieces)):
        raise ExportError(
            f"{path} has {len(missing):,} of {len(pieces):,} pieces without an id, such as {missing[0]!r}; {GIVE_TOKENIZER}"
        )
    read = {*pieces, *numbering.special} if path.name == MARIAN else numbering.ids.keys()
    ids = {token if token in read else ONLY_WRITTEN + token: token_id for token, token_id in numbering.ids.items()}
    tokenizer, original = convert_sentencepiece(path, {}, ids=ids)
    around = [*numbering.before, "$A", *numbering.after]
    if original.processor.id_to_piece(original.unknown_id) in around:
        raise ExportError(f"the settings of {name}Tokenizer name no language that it has; {GIVE_TOKENIZER}")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in numbering.special])
    special = [(token, numbering.ids[token]) for token in dict.fromkeys((*numbering.before, *numbering.after))]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    return tokenizer, Renumbered(original, tuple(map(numbering.ids.get, pieces)))


def from_sentencepiece(path: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, Reference]:
    """Convert a SentencePiece model and give it the begin and end tokens that its settings ask for."""
    name = "Marian" if path.name == MARIAN else class_of(settings, path.parent)
    if name in SHIFTED:
        return renumbered(path, name)
    renamed = {token_id: token.content for token_id, token in added_tokens(settings, path.parent).items()}
    tokenizer, original = convert_sentencepiece(path, renamed, prefix_after_special=settings.get("legacy") is not False)
    add_tokens(tokenizer, settings, path)
    bos = token_text(settings.get("bos_token")) or original.begin
    eos = token_text(settings.get("eos_token")) or original.end
    first = [bos] if bos and settings.get("add_bos_token", name != "T5") else []
    last = [eos] if eos and settings.get("add_eos_token", name == "T5") else []
    ids = {token: tokenizer.token_to_id(token) for token in first + last}
    if ids and None not in ids.values():
        tokenizer.post_processor = processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=list(ids.items()))
    return tokenizer, original
