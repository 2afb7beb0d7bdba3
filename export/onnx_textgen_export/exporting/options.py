"""`ExportOptions`: the options of one export, checked before anything is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypedDict, get_args

from tokenizers import Tokenizer

from onnx_textgen.package.manifest import MOST_IMAGE_TOKENS, Precision, Target

from ..calibration.attempts import Budget
from ..errors import ExportError
from ..passes.quantization.options import DEFAULTS, Quantization, default_for

__all__ = ["DEFAULTS", "Budget", "ExportKeywords", "ExportOptions", "Quantization"]

AskedPrecision = Precision | Literal["as-stored"]
AS_STORED: Literal["as-stored"] = "as-stored"


@dataclasses.dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export; `export` takes the same names as keywords."""

    precision: AskedPrecision = "as-stored"
    """How weights are stored; `as-stored`: a source that is quantised keeps its numbers, any other is stored in float32."""
    target: Target = "ort"
    """Which operators the graph may use: ONNX Runtime's, or those of the ONNX standard alone."""
    quantization: Quantization | None = None
    """How int8 and int4 are stored, and what a quantised source does not keep (as int8); None: the defaults of the precision."""
    budget: Budget | None = None
    """How much a quantised package may lose, or how large it may be; None: the precision's own budget."""
    tokenizer: str | Path | Tokenizer | None = None
    """A tokenizer.json for a source that brings none; without one the package takes and gives token ids."""
    adapter: str | Path | None = None
    """A LoRA adapter to merge into the weights, as its folder or `owner/name` on the hub. Its tokenizer and template, if any,
    replace the source's."""
    adapters: Mapping[str, str | Path] = dataclasses.field(default_factory=dict)
    """LoRA adapters that are kept apart, each by the name that a text chooses it by, as `adapter` is given."""
    eos_ids: tuple[int, ...] = ()
    """Ids that end a text, where the source names none."""
    context_length: int | None = None
    """Most tokens of a text; None: what the source says."""
    name: str | None = None
    """The model's name; None: the source's."""
    origin: str | None = None
    """Where the weights came from, and their licence; None: the source."""
    allow_pickle: bool = False
    """Read weights from a pickle (tensors only) if there are no safetensors."""
    other_runtimes: bool = True
    """Write the files that let onnxruntime-genai, transformers.js and browsers open the folder, if they can run the decoder."""
    hidden_states: bool = False
    """Add the output that `Model.embed` needs; always done for a checkpoint that says how it embeds texts."""
    attention_maps: bool = False
    """Add the graph that `Model.attentions` needs."""
    int8_cache: bool = False
    """Add a graph that keeps keys and values at 8 bits."""
    requantise: bool = False
    """Round the matrices of a quantised checkpoint again, where no form of ours holds their numbers, instead of refusing them."""
    text_only: bool = False
    """Leave out the part that reads pictures, of a model that has one."""
    image_tokens: int | None = None
    """The most tokens of a picture, of a model that keeps the shape of pictures: larger ones are made smaller. None: 1,280, or less
    if the model's makers say so."""
    force: bool = False
    """Replace an existing model folder."""

    def __post_init__(self) -> None:
        known = (AS_STORED, *get_args(Precision))
        if self.precision not in known:
            raise ExportError(f"there is no precision {self.precision}; take one of {', '.join(known)}")
        if self.image_tokens is not None and not 1 <= self.image_tokens <= MOST_IMAGE_TOKENS:
            raise ExportError(f"image_tokens should be from 1 to {MOST_IMAGE_TOKENS:,}, found {self.image_tokens}")
        asked = self.quantization
        if asked is not None and self.precision not in (f"int{asked.bits}", *([AS_STORED] if asked.bits == 8 else [])):
            raise ExportError(
                f"{asked.describe()} is asked for, and the precision {self.precision}; take --precision int{asked.bits}"
            )

    @property
    def chosen_precision(self) -> Precision:
        """The precision asked for; int8 for the numbers of a quantised source (see `for_source`)."""
        return "int8" if self.precision == AS_STORED else self.precision

    def for_source(self, *, is_quantized: bool, embeds: bool) -> ExportOptions:
        """With hidden states for an embedding model, and the precision that `as-stored` means: float32 for a source not quantised.

        A matrix of a quantised source keeps its integers, of 4 bits or 8; what the source left unquantised, or holds in a form
        that cannot be kept, is rounded to 8 bits within the budget of int8.
        """
        options = dataclasses.replace(self, hidden_states=self.hidden_states or embeds)
        if self.precision != AS_STORED or is_quantized:
            return options
        return dataclasses.replace(options, precision="fp32", quantization=None)  # which is exact whatever was asked for

    @property
    def chosen_budget(self) -> Budget:
        """The budget asked for, or the default one of the precision."""
        return self.budget or Budget()

    def quantization_for(self, width: int) -> Quantization | None:
        """How the matrices of a decoder of that width are stored; None where the precision is not quantised."""
        options = self.quantization or default_for(self.chosen_precision, width)
        if options is None and self.chosen_budget != Budget():
            raise ExportError(
                f"{self.chosen_precision} is not quantised, so there is no rounding to improve; take --precision int8 or int4"
            )
        if options is None:
            return None
        budget, keeps = self.chosen_budget, self.precision == AS_STORED
        calibrates = budget.calibrates and (not keeps or budget.calibration is not None)  # hardly anything is left to round
        method = "k_quant" if options.method == "calibrated" and not calibrates else options.method
        return dataclasses.replace(options, method=method, keeps_stored=keeps)


class ExportKeywords(TypedDict, total=False):
    """The fields of `ExportOptions` as keywords of `export`; a test holds the two equal."""

    precision: AskedPrecision
    target: Target
    quantization: Quantization | None
    budget: Budget | None
    tokenizer: str | Path | Tokenizer | None
    adapter: str | Path | None
    adapters: Mapping[str, str | Path]
    eos_ids: tuple[int, ...]
    context_length: int | None
    name: str | None
    origin: str | None
    allow_pickle: bool
    other_runtimes: bool
    hidden_states: bool
    attention_maps: bool
    int8_cache: bool
    requantise: bool
    text_only: bool
    image_tokens: int | None
    force: bool
