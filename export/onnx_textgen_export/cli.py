"""The command `onnx-textgen export`. Torch is imported when it runs, since that takes seconds."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from onnx_textgen.errors import OptionError
from onnx_textgen.help_texts import help_of

from .stages import begin_export

if TYPE_CHECKING:
    from onnx_textgen.package.manifest import Manifest

    from .exporting.exporter import Exported
    from .exporting.options import ExportKeywords, Quantization

WRITTEN = {"method": "--quantizer", "accuracy_level": "--exact"}
"""Options of a quantised precision whose flag differs from their name."""
EVEN_WHERE_KEPT = {"accuracy_level"}
"""Options of a quantised precision that matter where the numbers of the source are kept."""

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False, rich_markup_mode=None)


class PrecisionName(StrEnum):
    """How weights are stored."""

    as_stored = "as-stored"
    fp32 = "fp32"
    fp16 = "fp16"
    int8 = "int8"
    int4 = "int4"


class QuantizerName(StrEnum):
    """How the numbers of a quantised matrix are chosen."""

    calibrated = "calibrated"
    rtn = "rtn"
    k_quant = "k_quant"
    hqq = "hqq"


class ActivationsName(StrEnum):
    """Precision of everything but the quantised products."""

    fp32 = "fp32"
    fp16 = "fp16"


class TargetName(StrEnum):
    """Which operators the graph may use."""

    ort = "ort"
    standard = "standard"


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """How one option is written on the command line."""

    kind: Any
    """Type of its value; a list option may be repeated."""
    help: str
    flags: tuple[str, ...] = ()
    """Where `--name-with-dashes` is not enough."""
    default: Any = None
    metavar: str | None = None
    least: int | None = None


OPTIONS: Mapping[str, Given] = {
    "precision": Given(
        PrecisionName,
        "How weights are stored. as-stored: a quantised source keeps its numbers, any other gets fp32. fp16 is meant for CUDA.",
        default=PrecisionName.as_stored,
    ),
    "activations": Given(ActivationsName | None, "int8, int4: precision of the activations and the cache; fp16 is meant for GPUs."),
    "target": Given(TargetName, "ort: fast, for ONNX Runtime. standard: any runtime.", default=TargetName.ort),
    "other_runtimes": Given(
        bool,
        "Let onnxruntime-genai, transformers.js and browsers open the folder too.",
        ("--other-runtimes/--no-other-runtimes",),
        default=True,
    ),
    "hidden_states": Given(bool, "Add hidden states as an output, for embeddings.", ("--hidden-states",), default=False),
    "attention_maps": Given(
        bool, "Add a graph that returns attention weights, for the web page.", ("--attention-maps",), default=False
    ),
    "int8_cache": Given(
        bool, "Add a graph with keys and values at 8 bits, for long contexts on a CPU.", ("--int8-cache",), default=False
    ),
    "force": Given(bool, "Replace an existing model folder.", ("--force",), default=False),
    "adapter": Given(
        list[str] | None,
        "A LoRA adapter to merge into the weights: its folder, or owner/name on the hub. NAME=DIR keeps it apart, to be chosen per "
        "text, and may be repeated.",
        metavar="[NAME=]DIR",
    ),
    "tokenizer": Given(Path | None, "A tokenizer.json, for a source without one."),
    "eos_id": Given(list[int] | None, "An id that ends a text, for a source that names none."),
    "context_length": Given(int | None, "Longest context, if the source does not say.", least=2),
    "name": Given(str | None, "The model's name; default: the folder's."),
    "origin": Given(str | None, "Where the weights came from, and their licence."),
    "block_size": Given(
        int | None, "int8, int4: weights that share one scale. Given for int4, no block is smaller; on some CPUs faster."
    ),
    "symmetric": Given(bool | None, "int8, int4: without or with a zero point in each block.", ("--symmetric/--asymmetric",)),
    "quantizer": Given(QuantizerName | None, "int8, int4: how codes are chosen."),
    "head_bits": Given(int | None, "int4: 8 keeps the output layer in int8."),
    "sensitive_bits": Given(int | None, "int4: 8 keeps the layers most sensitive to rounding in int8."),
    "max_kl": Given(float | None, "int8, int4: largest KL divergence from the unrounded model, in nats per token."),
    "min_cosine": Given(float | None, "int8, int4 of a text encoder: smallest cosine of a vector with the unrounded model's."),
    "target_size": Given(float | None, "int4: the best quality that fits in this many MB.", metavar="MB"),
    "strict_bits": Given(bool, "int4: 4 bits for every matrix, whatever the cost in quality.", ("--strict-bits",), default=False),
    "calibration": Given(
        Path | None, "int8, int4: a text file like your own texts, to calibrate on.", ("--calibrate",), metavar="FILE"
    ),
    "calibrates": Given(bool, "int8, int4: do not calibrate; faster, and less accurate.", (" /--no-calibrate",), default=True),
    "exact": Given(
        bool, "Quantised: multiply in float32, so that every runtime writes the same text; slower.", ("--exact",), default=False
    ),
    "requantise": Given(
        bool, "Round a quantised checkpoint again where its numbers cannot be kept.", ("--requantise",), default=False
    ),
    "text_only": Given(bool, "Leave out the part that reads pictures, of a model that has one.", ("--text-only",), default=False),
    "image_tokens": Given(
        int | None, "The most tokens of a picture, of a model that keeps the shape of pictures; default: 1280.", least=1
    ),
    "allow_pickle": Given(
        bool, "Read weights from a pickle if there are no safetensors; tensors only.", ("--allow-pickle",), default=False
    ),
    "recipe": Given(
        Path | None, "Also write the recipe that rebuilds the folder from SOURCE without PyTorch; of an existing folder too."
    ),
    "push": Given(str | None, "Also upload the folder to this repository of the hub; see push.", metavar="OWNER/NAME"),
    "private": Given(bool, "With --push: make a new repository private; refuse a public one.", ("--private",), default=False),
    "as_json": Given(bool, "Print the manifest as JSON.", ("--json",), default=False),
}
"""Every option of the command but `--out`, in the order of its help."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of the table; it gets their values as the mapping `given`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "given"]
    parameters = [*own, *(parameter_for(name, option) for name, option in OPTIONS.items())]

    @functools.wraps(command)
    def run(*arguments: Any, **values: Any) -> None:  # noqa: ANN401 - whatever typer read
        command(*arguments, given={name: values.pop(name, option.default) for name, option in OPTIONS.items()}, **values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def parameter_for(name: str, given: Given) -> inspect.Parameter:
    """A keyword-only parameter that typer reads as an option."""
    option = typer.Option(*given.flags, help=given.help, metavar=given.metavar, min=given.least)
    annotation: Any = Annotated[given.kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given.default, annotation=annotation)


@with_options
def export(
    source: Annotated[
        str, typer.Argument(help="A checkpoint folder, a GGUF file, owner/name on the hub, or file.py:name for your own.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="The model folder to make.")],
    given: Mapping[str, Any],
) -> None:
    """Make a model folder from a PyTorch decoder, and prove that both compute the same.

    Try:
        onnx-textgen export ./my-checkpoint --out ./my-model
        onnx-textgen export ./my-checkpoint --out ./small --precision int4
        onnx-textgen export ./my-checkpoint --out ./smaller --precision int4 --target-size 90
        onnx-textgen export HuggingFaceTB/SmolLM2-135M-Instruct --out ./smollm --precision int8
        onnx-textgen export my_model.py:build --out ./my-model --tokenizer tokenizer.json
    """
    from onnx_textgen.package.reading import has_manifest  # noqa: PLC0415

    recipe = given["recipe"]
    if given["private"] and given["push"] is None:
        raise OptionError("--private is of a repository; add --push OWNER/NAME, or leave it out")
    if given["push"] is not None:
        from onnx_textgen.hub.pushing import check_login  # noqa: PLC0415

        check_login(given["push"])  # before the work
    if recipe is not None and has_manifest(out) and not given["force"]:
        write_recipe(recipe, source, out)
        push_folder(out, given)
        return
    if recipe is not None:
        weights_of(source)
    from .exporting.exporter import export as make  # noqa: PLC0415

    stages = begin_export()
    made = make(source, out, report=stages.begin, **keywords_from(given))
    stages.begin(None)
    if "fp16" in (given["precision"], given["activations"]):
        typer.echo("float16 is meant for GPUs; on a CPU int8 with float32 activations is faster", err=True)
    if given["as_json"]:
        typer.echo((made.folder / "manifest.json").read_text(encoding="utf-8"), nl=False)
    else:
        show(made)
    if recipe is not None:
        write_recipe(recipe, source, made.folder)
    push_folder(made.folder, given)


def push_folder(folder: Path, given: Mapping[str, Any]) -> None:
    """Upload a folder, if a repository is named."""
    if given["push"] is None:
        return
    from onnx_textgen.cli.publishing.push import push  # noqa: PLC0415

    typer.echo(push(folder, given["push"], private=given["private"]), err=True)


def write_recipe(recipe: Path, source: str, folder: Path) -> None:
    """Write the recipe of a package, and say how large it is."""
    from .package.recipe import make_recipe  # noqa: PLC0415

    size = make_recipe(folder, weights_of(source), recipe)
    typer.echo(f"{recipe}: {size / 1e6:.2f} MB; it rebuilds {folder} with: onnx-textgen build {recipe} SOURCE --out DIR", err=True)


def weights_of(source: str) -> Path:
    """The one file of a source's weights; raises `OptionError` for any other source, which no recipe can name."""
    path = Path(source)
    inside = path / "model.safetensors"
    if path.is_dir() and inside.is_file():
        return inside
    if path.is_file() and path.suffix in (".gguf", ".safetensors"):
        return path
    raise OptionError(f"--recipe needs a source with one weights file on this machine (GGUF, model.safetensors), not {source:.200}")


app.command(help=help_of(export))(export)


def keywords_from(given: Mapping[str, Any]) -> ExportKeywords:
    """The options of the command as `export` takes them."""
    from .exporting.options import Budget  # noqa: PLC0415

    precision, activations, quantizer = given["precision"], given["activations"], given["quantizer"]
    if precision is PrecisionName.fp16 and activations is not None:
        raise OptionError("--precision fp16 is float16 throughout, so --activations does nothing; drop it, or take int8 or int4")
    size = given["target_size"]
    merged, kept = adapters_from(given["adapter"] or ())
    same = (
        "tokenizer",
        "context_length",
        "name",
        "origin",
        "allow_pickle",
        "other_runtimes",
        "hidden_states",
        "attention_maps",
        "int8_cache",
        "requantise",
        "text_only",
        "image_tokens",
    )
    keywords = {name: given[name] for name in (*same, "force")} | {
        "precision": precision.value,
        "target": given["target"].value,
        "adapter": merged,
        "adapters": kept,
        "eos_ids": tuple(given["eos_id"] or ()),
        "quantization": quantization_from(
            precision.value,
            block_size=given["block_size"],
            finer_blocks=False if given["block_size"] is not None else None,
            symmetric=given["symmetric"],
            method=quantizer and quantizer.value,
            head_bits=given["head_bits"],
            sensitive_bits=given["sensitive_bits"],
            accuracy_level=0 if given["exact"] else None,
            activations="fp16" if activations is ActivationsName.fp16 else None,
        ),
        "budget": Budget(
            max_kl=given["max_kl"],
            min_cosine=given["min_cosine"],
            target_bytes=None if size is None else round(size * 1e6),
            strict_bits=given["strict_bits"],
            calibrates=given["calibrates"],
            calibration=given["calibration"],
        ),
    }
    return cast("ExportKeywords", keywords)


def adapters_from(given: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """The adapter to merge, and those that are kept apart, by name; raises `OptionError` for two to merge, or of one name."""
    from .exporting.adapters import named_adapter  # noqa: PLC0415

    merged, kept = list[str](), dict[str, str]()
    for each in given:
        name, place = named_adapter(each)
        if name is None:
            merged.append(each)
        elif not place:
            raise OptionError(f"--adapter {each} names no adapter; give its folder: --adapter {name}=DIR")
        elif name in kept:
            raise OptionError(f"--adapter names {name} twice; give each adapter another name")
        else:
            kept[name] = place
    if len(merged) > 1:
        raise OptionError(f"only one adapter can be merged, found {' and '.join(merged)}; keep them apart: --adapter NAME=DIR")
    return (merged[0] if merged else None), kept


def quantization_from(precision: str, **given: int | str | None) -> Quantization | None:
    """The defaults of a quantised precision with the given options; None if none was given."""
    from .exporting.options import DEFAULTS  # noqa: PLC0415

    options = {name: value for name, value in given.items() if value is not None}
    if precision == "as-stored" and options.keys() <= EVEN_WHERE_KEPT:
        return dataclasses.replace(DEFAULTS["int8"], **options) if options else None  # type: ignore[arg-type]
    if options and precision not in DEFAULTS:
        name = next(iter(options))
        written = WRITTEN.get(name, f"--{name.replace('_', '-')}")
        why = "keeps the form that the source has" if precision == "as-stored" else "is not quantised"
        raise OptionError(f"{precision} {why}, so {written} does nothing; drop it, or take --precision int8 or int4")
    return dataclasses.replace(DEFAULTS[precision], **options) if options else None  # type: ignore[arg-type]


def show(made: Exported) -> None:
    """Print the certificate."""
    from rich.console import Console  # noqa: PLC0415

    from onnx_textgen.cli.terminal.certificate import precision_in_words, scenario_table, summary_in_words  # noqa: PLC0415
    from onnx_textgen.cli.terminal.next_step import next_step  # noqa: PLC0415
    from onnx_textgen.cli.terminal.tables import show_table  # noqa: PLC0415
    from onnx_textgen.package.manifest import INT8_CACHE_GRAPH, TOKENIZER  # noqa: PLC0415

    manifest: Manifest = made.manifest
    console = Console(highlight=False, markup=False, emoji=False)
    show_table(scenario_table(manifest.certificate["scenarios"]))
    console.print()
    geometry = manifest.geometry
    weights = precision_in_words(manifest.precision, manifest.quantization)
    console.print(
        f"{made.folder}: {manifest.name}, {weights}, target {manifest.target}, {geometry.layers} layers, "
        f"context {geometry.context_length:,}, proved to {manifest.certificate['longest_text']:,} tokens"
    )
    console.print(f"On real text: {summary_in_words(manifest.summary)}")
    if exact := manifest.certificate.get("same_weights"):
        error = max(scenario["logits_error"] for scenario in exact)
        console.print(f"With the same rounded weights PyTorch's logits differ by {error:.1e}: the rest is rounding")
    if ways := manifest.certificate.get("with_pictures"):
        error = max(scenario["logits_error"] for scenario in ways)
        about = manifest.certificate["pictures"]
        console.print(
            f"With pictures logits differ by {error:.1e} and {about['greedy_tokens']} greedy tokens are the same; "
            f"numbers of a picture are within {about['processor_levels']:.0f} of its 256 levels"
        )
    if rounded := manifest.certificate.get("int8_cache"):
        console.print(f"With keys and values at 8 bits ({INT8_CACHE_GRAPH}): {summary_in_words(rounded)}")
    for name, record in manifest.adapters.items():
        console.print(f"With the adapter {name}: {summary_in_words(record.certificate.get('summary', {}))}")
    if untested := manifest.certificate.get("untested"):
        console.print(f"Not tested: {' and '.join(untested)} tokens, beyond the longest text compared")
    if manifest.text_encoder is not None or manifest.images is not None or manifest.speech is not None:
        console.print(f"Next: {next_step(made.folder)}", style="dim")
        return
    words = "Once upon a time" if manifest.encoder is None else "SOURCE"
    prompt = f'"{words}"' if TOKENIZER in manifest.files else "--token-ids 1,2,3"
    console.print(f"Next: onnx-textgen generate {prompt} --model {made.folder}", style="dim")
