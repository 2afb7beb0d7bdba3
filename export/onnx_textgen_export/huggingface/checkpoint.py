"""Opens a Hugging Face checkpoint folder without reading its weights: a model skeleton, and where each of its tensors is stored.

transformers knows how names and layouts on disk become those of its modules (renamed keys, experts stacked into one tensor, ...).
The plan made here asks it once, from names alone; tensors are read and converted on demand.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    MODEL_MAPPING,
)

from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError, failing_as
from ..package.forecast import has_inputs_first
from ..sources.stored_form import StoredForm
from ..weights.adapter import Adapter
from ..weights.quantized_files import QuantizedFiles
from ..weights.size_checks import check_sizes
from ..weights.streamed import StreamedWeights, is_unmaterialized, put_parameter
from ..weights.tensor_files import TensorFiles
from .computed_tensors import computed_tensors


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How tensors of the module are made from tensors on disk."""

    first_target: str
    """The first of the tensors it makes."""
    sources: tuple[tuple[str, str], ...]
    """(name on disk, the converter's pattern that it matched), in natural order."""
    converter: WeightConverter | None
    """None: the only source is the tensor itself."""


def read_config(folder: Path) -> PretrainedConfig:
    """The checkpoint's config; no code from the folder is run."""
    if not (folder / "config.json").is_file():
        raise ExportError(f"{folder} has no config.json; give the folder of a Hugging Face checkpoint")
    with failing_as(f"transformers cannot read {folder / 'config.json'}"):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config


def quantization_of(config: PretrainedConfig) -> dict[str, Any]:
    """The settings of a quantised checkpoint, taken out of its config so that the plain model is built; empty if there are none."""
    found: Any = getattr(config, "quantization_config", None)
    if found is None:
        return {}
    del config.quantization_config
    return dict(found) if isinstance(found, Mapping) else dict(found.to_dict())


def make_skeleton(config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    """A model of that config in float32 whose parameters are uninitialised."""
    if getattr(config, "rescale_every", 0):
        config.rescale_every = 0  # RWKV halves weights when it first runs, for float16: those here come later, and are float32
    with failing_as(f"transformers cannot build the model of {folder}"), no_init_weights(), torch.no_grad():
        more: dict[str, Any] = {}
        kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        if is_image_reader(config):
            kind = AutoModelForImageTextToText
        if is_speech_reader(config):
            kind = AutoModelForSpeechSeq2Seq
        if is_text_encoder(config):
            kind, more = kind_of_text_encoder(config)
        model = cast(Any, kind).from_config(config, dtype=torch.float32, trust_remote_code=False, **more)
    if not isinstance(model, PreTrainedModel):
        raise ExportError(f"{folder} is not a language model")
    model.train(False)
    return model


class StoredTensors(Protocol):
    """Tensors on disk by name, read one at a time."""

    def names(self) -> list[str]:
        """Every tensor's name."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, if it is known before the tensor is read."""
        ...

    def read(self, name: str) -> Tensor:
        """One tensor in its stored type."""
        ...


class Plan:
    """Which tensors on disk make which tensors of the module."""

    def __init__(self, model: PreTrainedModel, files: StoredTensors) -> None:
        self.model, self.files = model, files
        self.recipes: dict[str, Recipe] = {}
        """Tensor of the module -> its recipe; one recipe may make more than one tensor."""
        self.aliases: dict[str, str] = {}
        """Tied tensor -> the one it is tied to."""
        self.computed: dict[str, Tensor] = {}
        """Tensors of the module that no file holds and that transformers computes."""
        self.made: tuple[str, dict[str, Tensor]] = ("", {})
        """What the last recipe made, because its tensors are read one after the other."""
        transforms: list[Any] = get_model_conversion_mapping(model)
        self.renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self.converters = [each for each in transforms if isinstance(each, WeightConverter)]
        by_pattern = {pattern: converter for converter in self.converters for pattern in converter.source_patterns}
        self.wanted = model.state_dict()
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.wanted.items()}
        gathered: dict[str, list[tuple[str, str]]] = {}
        for name in sorted(files.names(), key=natural_order):
            target, pattern = self.target(name)
            if target in self.wanted:
                gathered.setdefault(target, []).append((name, pattern))
        for target, sources in gathered.items():
            converter = by_pattern.get(sources[0][1])
            recipe = Recipe(target, tuple(sources), converter)
            first = converter.target_patterns[0] if converter else ""
            made = [target.replace(first, each) for each in converter.target_patterns] if converter else [target]
            self.recipes |= dict.fromkeys(made, recipe)
            if converter is None and (shape := files.shape(sources[-1][0])) is not None:
                self.check_shape(target, shape)

    def target(self, name: str) -> tuple[str, str]:
        """The tensor of the module that a tensor on disk makes, or is a part of, and the pattern of the converter that makes it."""
        target, pattern = rename_source_key(name, self.renamings, self.converters, self.model.base_model_prefix, self.wanted)
        return (name, "") if target not in self.wanted and name in self.wanted else (target, pattern or "")

    def read(self, name: str) -> Tensor:
        """A tensor of the module, in its stored type."""
        name = self.aliases.get(name, name)
        if name in self.computed:
            return self.computed[name]
        recipe = self.recipes[name]
        if recipe.converter is None:
            found = self.files.read(recipe.sources[-1][0])
        else:
            if self.made[0] != recipe.first_target:
                self.made = ("", {})
                self.made = (recipe.first_target, self.convert(recipe, recipe.converter))
            found = self.made[1][name]
        self.check_shape(name, tuple(found.shape))
        return found

    def reads_alone(self, name: str) -> bool:
        """Return whether a tensor of the module is one of the file's, of the same name."""
        recipe = self.recipes.get(name)
        return recipe is not None and recipe.converter is None and recipe.sources[-1:] == ((name, ""),)

    def check_shape(self, name: str, found: tuple[int, ...]) -> None:
        """Raise `ExportError` for a tensor whose shape is not the module's."""
        expected = self.shapes[name]
        if found != expected:
            raise ExportError(
                f"the checkpoint's {name} has the shape {list(found)} and its config asks for {list(expected)}; "
                "the files do not belong together"
            )

    def convert(self, recipe: Recipe, converter: WeightConverter) -> dict[str, Tensor]:
        """Run a converter of transformers on its tensors."""
        running = copy.deepcopy(converter)
        for name, pattern in recipe.sources:
            running.add_tensor(recipe.first_target, name, pattern, cast(Any, lambda name=name: self.files.read(name).float()))
        made = running.convert(recipe.first_target, model=self.model, config=self.model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Layer 2 before layer 10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in name.split(".")]


def tie(model: PreTrainedModel, plan: Plan) -> None:
    """Share the tensors that the model's config ties, unless the checkpoint holds both and they differ."""
    for target, source in list(model.all_tied_weights_keys.items()):
        if target in plan.recipes and source in plan.recipes:
            if not torch.equal(plan.read(target), plan.read(source)):
                continue
            del plan.recipes[target]
        kept, other = (source, target) if source in plan.recipes else (target, source)
        plan.aliases[other] = kept
        put_parameter(model, [other], model.get_parameter(kept))


def with_adapter(model: PreTrainedModel, plan: Plan, adapter: Adapter) -> tuple[Callable[[str], Tensor], frozenset[str]]:
    """What reads tensors of the module with an adapter merged into them, and which it changes.

    Raises `ExportError` for an adapter of another base.
    """
    changed = {plan.target(parameter)[0]: parameter for parameter in adapter.parts}
    if unknown := next((name for name in changed if name not in plan.shapes), None):
        raise ExportError(f"{adapter.folder} changes {unknown}, which the base does not have; {adapter.right_base()}")

    def read(name: str) -> Tensor:
        parameter = changed.get(name)
        return plan.read(name) if parameter is None else adapter.merged(parameter, lambda: plan.read(name))

    for name, kept in list(plan.aliases.items()):
        both = [each for each in (kept, name) if each in changed]
        if not both:
            continue
        if adapter.keeps_ties(changed[both[0]]) or (len(both) == 2 and torch.equal(read(kept), read(name))):
            changed[kept] = changed[name] = changed[both[0]]
        else:
            plan.aliases.pop(name)
            plan.recipes[name] = plan.recipes[kept]
            put_parameter(model, [name], nn.Parameter(torch.empty_like(model.get_parameter(kept)), requires_grad=False))
    for name, parameter in changed.items():
        shape = adapter.shape(parameter)
        if shape is not None and shape != plan.shapes[name]:
            resize(model, plan, name, shape, adapter)
    return read, frozenset(changed)


def resize(model: PreTrainedModel, plan: Plan, name: str, shape: tuple[int, ...], adapter: Adapter) -> None:
    """Give an embedding or output layer the number of rows that it has in an adapter, which was trained with further tokens."""
    before = plan.shapes[name]
    layers = [layer for layer in (model.get_input_embeddings(), cast(Any, model).get_output_embeddings()) if layer is not None]
    if len(shape) != 2 or shape[1:] != before[1:] or not any(model.get_parameter(name) is layer.weight for layer in layers):
        raise ExportError(
            f"{adapter.folder} replaces {name} by a tensor {list(shape)}, and the base has {list(before)}; {adapter.right_base()}"
        )
    names = [name, *(other for other, kept in plan.aliases.items() if kept == name)]
    plan.shapes |= dict.fromkeys(names, shape)
    put_parameter(model, names, nn.Parameter(torch.empty(shape), requires_grad=False))
    model.config.get_text_config().vocab_size = shape[0]


def fill_small(model: PreTrainedModel, plan: Plan, read: Callable[[str], Tensor]) -> None:
    """Read buffers and small parameters, which are not left unmaterialized; raises `ExportError` for what is missing."""
    tensors = model.state_dict(keep_vars=True)
    known = {id(tensors[name]) for name in plan.recipes if name in tensors}
    plan.computed = computed_tensors(model, [name for name, tensor in tensors.items() if id(tensor) not in known])
    plan.recipes |= {name: Recipe(name, (), None) for name in plan.computed}
    known |= {id(tensors[name]) for name in plan.computed}
    if missing := [name for name, tensor in tensors.items() if id(tensor) not in known]:
        raise ExportError(f"the checkpoint lacks the weights of {missing[0]} ({len(missing)} in all); it is incomplete")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name not in plan.recipes:
                continue
            if isinstance(tensor, nn.Parameter) and is_unmaterialized(tensor):
                continue
            tensor.copy_(read(name))


def stream(
    model: PreTrainedModel, plan: Plan, stored: Callable[[], dict[str, StoredForm]] = dict, adapter: Adapter | None = None
) -> StreamedWeights:
    """The weights of a model skeleton, with an adapter merged into them; `stored`: how parameters are quantised in their files."""
    tie(model, plan)
    read, changed = (plan.read, frozenset[str]()) if adapter is None else with_adapter(model, plan, adapter)
    fill_small(model, plan, read)
    forms = {
        name: form if plan.reads_alone(name) and name not in changed else form.without_rows() for name, form in stored().items()
    }
    return StreamedWeights(model, read, forms | {other: forms[kept] for other, kept in plan.aliases.items() if kept in forms})


def open_checkpoint(
    folder: Path, *, allow_pickle: bool = False, adapter: Adapter | None = None
) -> tuple[PreTrainedModel, StreamedWeights]:
    """The model skeleton of a checkpoint folder, and its weights; raises `ExportError` for what cannot be opened."""
    if given := read_json(folder / "config.json"):
        files = TensorFiles(folder, allow_pickle=allow_pickle)
        check_sizes(given, tensors=len(files.names()), where=folder / "config.json")
    config = read_config(folder)
    settings = quantization_of(config)
    model = make_skeleton(config, folder)
    transposed = {f".{name}.weight" for name, layer in model.named_modules() if has_inputs_first(layer)}
    quantized = (
        QuantizedFiles(files, settings, lambda name: any(each.endswith(f".{name}") for each in transposed)) if settings else None
    )
    with failing_as(f"{folder} holds tensors that do not fit its config"):
        plan = Plan(model, files if quantized is None else quantized)
    return model, stream(model, plan, lambda: {} if quantized is None else stored_forms(plan, quantized), adapter)


def stored_forms(plan: Plan, files: QuantizedFiles) -> dict[str, StoredForm]:
    """How each parameter of the module that a checkpoint holds quantised is stored there."""
    found: dict[str, StoredForm] = {}
    for name, recipe in plan.recipes.items():
        layers = [source for source, _ in recipe.sources if source in files.layers]
        if layers:
            order = files.order(layers[0]) if recipe.converter is None else None
            found[name] = StoredForm(files.layers[layers[0]][0].name, order=order)
    return found


def is_image_reader(config: PretrainedConfig) -> bool:
    """Return whether a checkpoint is a decoder that reads pictures, or nothing says that it is the text part of one."""
    named = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    return named is not None and not config.is_encoder_decoder and named in (config.architectures or [named])


def is_speech_reader(config: PretrainedConfig) -> bool:
    """Return whether a checkpoint is an encoder-decoder that reads sound."""
    named = MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.get(config.model_type)
    return named is not None and config.is_encoder_decoder and named in (config.architectures or [named])


def is_text_encoder(config: PretrainedConfig) -> bool:
    """Return whether a model reads a text in both directions at once: it makes vectors or scores, and cannot continue a text."""
    is_decoder = config.is_encoder_decoder or getattr(config, "is_decoder", False) or getattr(config, "causal", False)
    reads_both_ways = getattr(config, "use_bidirectional_attention", False) is True
    return not is_decoder and (reads_both_ways or config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def kind_of_text_encoder(config: PretrainedConfig) -> tuple[Any, dict[str, Any]]:
    """The class of a text encoder, and arguments for it: without the layer over the first token, which vectors do not need."""
    if any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        return AutoModelForSequenceClassification, {}
    made = MODEL_MAPPING.get(type(config), None)
    takes: Mapping[str, object] = inspect.signature(made.__init__).parameters if isinstance(made, type) else {}
    return AutoModel, {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}


def refuse_code(folder: Path) -> None:
    """Raise `ExportError` for a checkpoint whose model transformers does not know: its own Python code is never run."""
    config = read_json(folder / "config.json")
    kind, code = config.get("model_type"), config.get("auto_map")
    if not code:
        return
    if kind not in CONFIG_MAPPING:
        raise ExportError(
            f"{folder} is of the type {kind}, which this transformers does not know, and its Python code is "
            "not run; upgrade transformers, or build the model yourself and give it as file.py:name"
        )
