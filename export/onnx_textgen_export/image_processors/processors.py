"""The processor of a checkpoint that reads images: what it makes of a picture, and of the place of a picture in a text."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, PretrainedConfig
from transformers.models.auto import processing_auto
from transformers.processing_utils import ProcessorMixin
from transformers.utils.import_utils import DummyObject

from onnx_textgen.errors import first_line
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError, innermost
from .grids import Grid

FILES = ("preprocessor_config.json", "processor_config.json")
TILES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan")
"""Settings by which processors cut large pictures into tiles; without them every picture becomes as many tokens."""
TRIAL_SIZES = ((64, 48), (131, 257), (40, 40), (1100, 700))
"""Heights and widths of pictures whose shapes are compared."""
GRID_SIZES = ((140, 252), (196, 84), (112, 308), (60, 110), (84, 420), (40, 30), (224, 230))
"""Of pictures that show how numbers follow the grid: of several shapes, small and large."""
CLASSES: Mapping[str, str | None] = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
"""Names of transformers' processors by model type."""
PLAIN = ("input_ids", "attention_mask")
"""What a processor makes of a text."""
BEFORE, AFTER = "a ", " b"
FILLING = "one two three four five six "
"""Text, by which what belongs to tokens has another shape than what belongs to a picture."""
Pixels = npt.NDArray[np.uint8]


def trial_pictures(sizes: Sequence[tuple[int, int]] = TRIAL_SIZES) -> list[Pixels]:
    """Pictures with smooth and with noisy parts, in color."""
    draw, made = np.random.default_rng(0), list[Pixels]()
    for height, width in sizes:
        down, across = np.mgrid[0:height, 0:width] / max(height, width)
        waves = [127 + 120 * np.sin(9 * (turn * down + across) + turn) for turn in (0.3, 1.0, 2.3)]
        picture = np.stack(waves, axis=-1)
        picture[: height // 3] += draw.normal(0, 60, picture[: height // 3].shape)
        made.append(np.clip(picture, 0, 255).astype(np.uint8))
    return made


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """What a processor makes of one picture."""

    pixels: dict[str, Tensor]
    """Numbers that depend on the picture, by the model's name of them."""
    constants: dict[str, Tensor]
    """What else the model takes, which is the same for all pictures."""
    expansion: str
    """The text that takes the place of `Processor.placeholder`."""


class Processor:
    """A processor of transformers: one that makes the same number of tokens of every picture, or a grid that follows its shape."""

    def __init__(self, own: ProcessorMixin, takes: frozenset[str], token_id: int) -> None:
        """`takes`: the arguments of the model's forward; `token_id`: of the tokens whose embeddings a picture replaces.

        Raises `ExportError` for a processor whose use is unknown.
        """
        self.own: Any = own
        self.takes, self.token_id = takes, token_id
        self.images: Any = self.own.image_processor
        self.tokenizer: Any = self.own.tokenizer
        self.name = type(self.images).__name__.removesuffix("Pil")
        self.switches: dict[str, Any] = {}
        """Settings that are changed: tiles are turned off, and sizes limited."""
        self.placeholder = self.find_placeholder()
        self.varying = ""
        """What differs between pictures of several sizes; empty: all become as many tokens."""
        self.samples = self.read_samples()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the image processor."""
        own = {name: value for name, value in vars(self.own).items() if isinstance(value, int)}  # such as spatial_merge_size
        found = {name: value for name, value in vars(self.images).items() if not name.startswith("_")}
        return {name: plain(value) for name, value in (own | found | self.switches).items()}

    def find_placeholder(self) -> str:
        """The text that stands for a picture before it is expanded: a special token that the processor expands."""
        named = [str(getattr(self.own, name, "")) for name in ("boi_token", "image_token", "fake_image_token")]
        known: list[str] = [*named, *self.tokenizer.get_added_vocab()]
        picture, reason = trial_pictures(TRIAL_SIZES[:1])[0], ""
        for token in dict.fromkeys(filter(None, known)):
            try:
                text = self.expanded(token, picture)
            except Exception as error:  # noqa: BLE001 - whatever the processor's own code raises
                reason = first_line(innermost(error)) if token in named else reason
                continue
            if self.token_id in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
                return token
            reason = f"none of what {token} becomes has the id {self.token_id} of the config"
        raise ExportError(f"{type(self.own).__name__} expands no token to a picture's ({reason or 'it has no such token'})")

    def expanded(self, token: str, picture: Pixels) -> str:
        """The text for the tokenizer of which the processor makes the ids, without what is around the token."""
        texts = list[str]()
        with self.seen_texts(texts):
            self.call(BEFORE + token + AFTER, picture)
        text = str(texts[-1])
        start, end = text.find(BEFORE), text.rfind(AFTER)
        if start != 0 or end != len(text) - len(AFTER):
            raise ExportError("the processor changes the text around a picture")
        return text[len(BEFORE) : end]

    @contextlib.contextmanager
    def seen_texts(self, texts: list[str]) -> Iterator[None]:
        """Within the context, `texts` gets what the tokenizer is called with."""
        kind = type(self.tokenizer)
        own = kind.__call__

        def call(tokenizer: Any, text: Any = None, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the tokenizer's own
            texts.extend([text] if isinstance(text, str) else text)
            return own(tokenizer, text, *args, **options)

        with mock.patch.object(kind, "__call__", call):
            yield

    def call(self, text: str, *pictures: Pixels) -> dict[str, Any]:
        """What the processor makes of a text with pictures."""
        from PIL import Image  # noqa: PLC0415 - an extra

        images = [Image.fromarray(each) for each in pictures]
        return dict(self.own(text=[text], images=images, return_tensors="pt", **self.switches))

    def read(self, picture: Pixels) -> Read:
        """What the processor makes of one picture."""
        found = self.call(FILLING + self.placeholder, picture)
        inputs = {name: value for name, value in found.items() if name in self.takes and isinstance(value, Tensor)}
        pixels = {name: value for name, value in inputs.items() if value.is_floating_point()}
        constants = {name: value for name, value in inputs.items() if name not in pixels}
        return Read(pixels, constants, self.expanded(self.placeholder, picture))

    def read_samples(self) -> list[Read]:
        """What it makes of some pictures, without tiles where these make the difference."""
        pictures = trial_pictures()
        reads = [self.read(each) for each in pictures]
        if differing(reads):
            self.switches = {name: False for name in TILES if hasattr(self.images, name)}
            reads = [self.read(each) for each in pictures]
        if not (names := list(reads[0].pixels)):
            raise ExportError(f"{self.name} makes no numbers of a picture")
        if len(names) > 1:
            raise ExportError(f"{self.name} makes more than one tensor of a picture ({', '.join(names)})")
        if not (why := differing(reads)):
            return reads[:1]
        self.varying = why
        return [self.read(each) for each in trial_pictures(GRID_SIZES)]

    @property
    def sample(self) -> Read:
        """What it makes of the first of these pictures."""
        return self.samples[0]

    def limit(self, edges: Mapping[str, int]) -> None:
        """Change the limits of its pictures' sizes; the samples, which show how numbers follow the grid, stay."""
        self.switches["size"] = dict(edges)

    @staticmethod
    def constants(read: Read) -> dict[str, Tensor]:
        """What a vision part takes besides the numbers of a picture: nothing that belongs to the tokens of a text."""
        tokens = read.constants["input_ids"].shape
        return {name: value for name, value in read.constants.items() if name not in PLAIN and value.shape != tokens}

    def ids(self, read: Read) -> list[int]:
        """The token ids of what a picture becomes."""
        found: list[int] = self.tokenizer(read.expansion, add_special_tokens=False)["input_ids"]
        return found

    def tokens_of(self, read: Read) -> int:
        """How many tokens of a picture have rows."""
        return self.ids(read).count(self.token_id)

    def with_tiles(self, switches: Mapping[str, Any]) -> Processor:
        """The same processor with its tiles, and with settings that limit these."""
        made = copy.copy(self)
        made.switches = {**{name: value for name, value in self.switches.items() if name not in TILES}, **switches}
        return made

    def with_one_token(self, read: Read, parts: int, tokens: int) -> str:
        """What a picture becomes, with one token for the `tokens` of each of its parts; raises `ExportError`."""
        token = str(self.tokenizer.convert_ids_to_tokens(self.token_id))
        text = read.expansion.replace(token * tokens, token)
        if self.tokens_of(read) != parts * tokens or text.count(token) != parts:
            raise ExportError(f"{self.name} writes more than tokens of rows between those of a tile")
        return text

    def without_grid(self, reads: Sequence[Read], grids: Sequence[Grid]) -> tuple[str, tuple[int, ...]]:
        """What pictures become with one token for all of a grid's, and the ids between two of its lines; raises `ExportError`."""
        token = str(self.tokenizer.convert_ids_to_tokens(self.token_id))
        ends, breaks = set[tuple[str, str]](), set[tuple[int, ...]]()
        for read, (height, width) in zip(reads, grids, strict=True):
            before, _, rest = read.expansion.partition(token)
            ends.add((before, rest.rpartition(token)[2]))
            ids, line = self.ids(read), [self.token_id] * width
            places = [place for place, each in enumerate(ids) if each == self.token_id]
            if len(places) != height * width:
                raise ExportError(f"{self.name} makes {len(places)} tokens of a picture with a grid of {height} by {width}")
            between = ids[places[width - 1] + 1 : places[width]] if height > 1 else []
            if ids[places[0] : places[-1] + 1] != [*line, *(height - 1) * [*between, *line]]:
                raise ExportError(f"{self.name} writes more than tokens of rows between those of a picture")
            breaks |= {tuple(between)} if height > 1 else set()
        if len(ends) != 1 or len(breaks) > 1:
            raise ExportError(f"{self.name} writes other texts around pictures of other sizes")
        ((before, after),) = ends
        return before + token + after, next(iter(breaks), ())


def differing(reads: Sequence[Read]) -> str:
    """What differs between pictures; empty if nothing does that a graph cannot follow."""
    first = reads[0]
    for each in reads[1:]:
        for name, value in first.pixels.items():
            if name not in each.pixels or each.pixels[name].shape != value.shape:
                return f"{name} of other shapes"
        if each.expansion != first.expansion:
            return "other numbers of tokens"
        for name, value in first.constants.items():
            if name not in each.constants or not torch.equal(each.constants[name], value):
                return f"other {name}"
    return ""


def plain(value: Any) -> Any:  # noqa: ANN401 - a setting of any type
    """A setting as plain data: sizes are objects of transformers."""
    if hasattr(value, "height") or hasattr(value, "longest_edge"):
        names = ("height", "width", "shortest_edge", "longest_edge")
        return {name: getattr(value, name) for name in names if getattr(value, name, None)}
    return dict(value) if isinstance(value, Mapping) else value


def has_processor(folder: Path) -> bool:
    """Return whether a checkpoint says how its pictures are read."""
    return any((folder / name).is_file() for name in FILES)


def open_processor(folder: Path, config: PretrainedConfig, takes: frozenset[str], token_id: int) -> Processor:
    """The processor of a checkpoint folder; raises `ExportError` if it cannot be opened, or reads pictures in another way."""
    try:
        own = own_processor(folder, config)
    except Exception as error:
        raise ExportError(f"its image processor cannot be opened ({first_line(innermost(error))})") from error
    return Processor(own, takes, token_id)


def own_processor(folder: Path, config: PretrainedConfig) -> ProcessorMixin:
    """The processor from its parts: without the one for videos, which needs more than Pillow."""
    local = {"local_files_only": True, "trust_remote_code": False}
    images: Any = cast(Any, AutoImageProcessor).from_pretrained(folder, backend="pil", **local)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **local)
    settings = read_json(folder / "processor_config.json")
    named = settings.get("processor_class") or read_json(folder / "preprocessor_config.json").get("processor_class")
    kind: Any = processor_class(CLASSES.get(config.model_type) or named or "")
    if kind is None:
        raise ExportError(f"transformers knows no processor of {config.model_type}")
    parameters = inspect.signature(kind.__init__).parameters
    given = {name: value for name, value in settings.items() if name in parameters and not name.endswith("processor")}
    missing = {"video_processor": None} if "video_processor" in parameters else {}
    with mock.patch.object(kind, "check_argument_for_proper_class", lambda *_: None):
        made: ProcessorMixin = kind(image_processor=images, tokenizer=tokenizer, **missing, **given)
    return made


def processor_class(name: str) -> Any:  # noqa: ANN401 - a class of transformers; None if there is no such
    """A class of processors by name, also if transformers would load it only with torchvision, of which it uses nothing here."""
    found: Any = processing_auto.processor_class_from_name(name)
    if not isinstance(found, DummyObject):
        return found
    for model_type in (each for each, known in CLASSES.items() if known == name):
        module = f"{model_type.replace('-', '_')}.processing_{model_type.replace('-', '_')}"
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(f"transformers.models.{module}"), name)
    raise ExportError("transformers loads its processor with torchvision alone; install it: pip install torchvision")
