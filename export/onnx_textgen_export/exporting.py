"""From a decoder to a proven model folder: trace, change the graph, write, compare with PyTorch, and only then keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from onnx_textgen.artifact import GRAPH, WEIGHTS, Manifest, Precision, Target
from onnx_textgen.session import open_session

from .errors import ExportError
from .folder import check_target, new_folder, records, write_manifest
from .huggingface import load_model, source_from_model
from .parity import certificate, needed_tokens, prove
from .passes.quantize import quantize
from .sources import Source, source_from_module
from .text_assets import TextAssets, read_json, read_text_assets
from .tiny_transformer import TinyTransformer
from .trace import trace

PROBE_TEXT = (
    "The ferry left the harbour a little after six, when the fog had begun to lift. Anna counted the gulls on the railing and "
    "wrote the number in her notebook: seven. Her brother said there were eight, because one had flown off while she was "
    'writing. "Does a bird count if it has left?" she asked. Nobody knew. By noon they could see the island, 40 houses and a '
    "white tower, and the cook brought them soup; it was hot, salty and very good.\n"
)
BITS = {"int8": 8, "int4": 4}
Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export made."""

    folder: Path
    manifest: Manifest


def probe_ids(source: Source, assets: TextAssets) -> list[int]:
    """Real token ids to compare on: text where there is a tokenizer, else ids drawn once and for all."""
    needed = needed_tokens(source)
    if assets.tokenizer is None:
        return [int(i) for i in np.random.default_rng(1).integers(0, source.geometry.vocab_size, needed)]
    ids: list[int] = []
    while len(ids) < needed:
        more = assets.tokenizer.encode(PROBE_TEXT, add_special_tokens=not ids).ids
        if not more or max(more) >= source.geometry.vocab_size:
            raise ExportError(
                f"the tokenizer gives ids up to {max(more, default=0)}, the model has {source.geometry.vocab_size} logits; "
                "they do not belong together"
            )
        ids += more
    return ids[:needed]


def export_source(
    source: Source,
    out: str | Path,
    *,
    assets: TextAssets,
    name: str,
    origin: str = "",
    precision: Precision = "fp32",
    target: Target = "ort",
    force: bool = False,
    report: Report = lambda stage: None,
) -> Exported:
    """Export `source` to the folder `out`; `report` is told each stage as it begins.

    Raises `ExportError` and leaves nothing behind if the model cannot be traced or its logits differ from PyTorch's.
    """
    if precision not in ("fp32", "int8", "int4"):
        raise ExportError(f"precision {precision} is not available yet; take fp32, int8 or int4")
    if precision in BITS and target == "standard":
        raise ExportError(f"{precision} needs operators of ONNX Runtime; take --target ort, or --precision fp32")
    target_folder = Path(out)
    check_target(target_folder, force=force)
    report("trace")
    model = trace(source, target)
    common_passes.CommonSubexpressionEliminationPass()(model)
    if precision in BITS:
        report(f"quantise to {precision}")
        quantize(model, BITS[precision])
        common_passes.RemoveUnusedNodesPass()(model)
    with new_folder(target_folder, force=force) as folder:
        report("write")
        ir.save(model, folder / GRAPH, external_data=WEIGHTS)
        assets.write(folder)
        report("compare with PyTorch")
        session = open_session(folder / GRAPH, device="cpu")
        measured, golden = prove(source, session, probe_ids(source, assets), precision)
        manifest = Manifest(
            name=name,
            target=target,
            precision=precision,
            geometry=source.geometry,
            bos_id=assets.bos_id,
            eos_ids=assets.eos_ids,
            pad_id=assets.pad_id,
            files=records(folder),
            generation=assets.generation,
            source=origin,
            versions={package: version(package) for package in ("onnx-textgen", "torch", "transformers", "onnx", "onnxruntime")},
            certificate=certificate(measured, precision),
            golden=golden,
        )
        write_manifest(folder, manifest)
    return Exported(target_folder, manifest)


def export(
    source: str | Path | nn.Module,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    target: Target = "ort",
    tokenizer: str | Path | Tokenizer | None = None,
    eos_ids: tuple[int, ...] = (),
    context_length: int | None = None,
    name: str | None = None,
    origin: str | None = None,
    force: bool = False,
    report: Report = lambda stage: None,
) -> Exported:
    """Export a checkpoint folder, a transformers model or any decoder module to the model folder `out`, with proof.

    source: a Hugging Face checkpoint folder, a `TinyTransformer` folder, a transformers model, or an `nn.Module` whose forward
    takes `(input_ids, position_ids, cache)` or `(input_ids, past_key_values=...)`. A module brings no text of its own: give it
    `tokenizer` (a tokenizer.json) and `eos_ids`, or generate from token ids. `context_length` overrides what the source says;
    `origin` tells where the weights came from, and their licence.

    Raises `ExportError`, with nothing written, if the source cannot be traced or the package does not compute what PyTorch does.
    """
    report("load")
    assets = TextAssets()
    if isinstance(source, nn.Module):
        module: nn.Module = source
        name = name or type(source).__name__
        origin = origin or f"the module {type(source).__qualname__}"
    else:
        folder = Path(source)
        if not folder.is_dir():
            raise ExportError(f"{folder} is not a folder; give a checkpoint folder, or file.py:name for a module of your own")
        is_ours = read_json(folder / "config.json").get("model_type") == "tiny_transformer"
        module = TinyTransformer.from_folder(folder) if is_ours else load_model(folder)
        assets, name = read_text_assets(folder), name or folder.resolve().name
        origin = origin or f"the checkpoint {folder.resolve().name}"
    if tokenizer is not None:
        opened = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.from_file(str(tokenizer))
        assets = dataclasses.replace(assets, tokenizer=opened)
    if eos_ids:
        assets = dataclasses.replace(assets, eos_ids=eos_ids)
    if isinstance(module, PreTrainedModel):
        made = source_from_model(module, context_length=context_length)
    else:
        made = source_from_module(module, context_length=context_length)
    return export_source(
        made, out, assets=assets, name=name, origin=origin, precision=precision, target=target, force=force, report=report
    )
