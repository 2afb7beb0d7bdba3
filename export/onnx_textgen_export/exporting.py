"""From a decoder to a proven model folder: trace, change the graph, write, compare with PyTorch, and only then keep."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import onnxruntime
import torch
import transformers
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from onnx_textgen.artifact import GRAPH, WEIGHTS, Manifest, Precision, Target
from onnx_textgen.errors import first_line
from onnx_textgen.session import open_session

from .errors import ExportError
from .folder import check_target, new_folder, records, write_manifest
from .huggingface import load_model, source_from_model
from .parity import SHORTEST_CONTEXT, certificate, prove
from .passes.quantize import quantize
from .probe_text import probe_ids
from .sources import Source, source_from_module
from .text_assets import TextAssets, read_json, read_text_assets, read_tokenizer
from .tiny_transformer import TinyTransformer
from .trace import innermost, trace

BITS = {"int8": 8, "int4": 4}
Report = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export made."""

    folder: Path
    manifest: Manifest


def versions() -> dict[str, str]:
    """Exporter and libraries."""
    libraries = {"torch": torch, "transformers": transformers, "onnx": onnx, "onnxruntime": onnxruntime}
    return {"onnx-textgen": version("onnx-textgen"), **{name: str(library.__version__) for name, library in libraries.items()}}


def check_ids_and_context(source: Source, assets: TextAssets) -> None:
    """Refuse a context too short to prove anything in, and special ids that the model has no logits for."""
    geometry = source.geometry
    if geometry.context_length < SHORTEST_CONTEXT:
        raise ExportError(f"a context of {geometry.context_length} is too short to prove; it takes at least {SHORTEST_CONTEXT}")
    for token_id in (assets.bos_id, assets.pad_id, *assets.eos_ids):
        if token_id is not None and not 0 <= token_id < geometry.vocab_size:
            raise ExportError(
                f"the special id {token_id} is outside the vocabulary of {geometry.vocab_size}; mend the source's config"
            )


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
    check_ids_and_context(source, assets)
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
        measured, golden = prove(source, session, probe_ids(source, assets.tokenizer), precision)
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
            versions=versions(),
            certificate=certificate(source, measured, precision),
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
        assets = dataclasses.replace(
            assets, tokenizer=tokenizer if isinstance(tokenizer, Tokenizer) else read_tokenizer(Path(tokenizer))
        )
    if eos_ids:
        assets = dataclasses.replace(assets, eos_ids=eos_ids)
    with as_it_runs(module) as running:
        made = make_source(running, context_length)
        return export_source(
            made, out, assets=assets, name=name, origin=origin, precision=precision, target=target, force=force, report=report
        )


@contextlib.contextmanager
def as_it_runs(module: nn.Module) -> Iterator[nn.Module]:
    """The module in evaluation mode and float32 on the CPU; the caller's own stays as it was."""
    if any(t.is_floating_point() and (t.dtype != torch.float32 or t.device.type != "cpu") for t in module.state_dict().values()):
        module = copy.deepcopy(module).to("cpu", torch.float32)
    was_training = module.training
    module.train(False)
    try:
        yield module
    finally:
        module.train(was_training)


def make_source(module: nn.Module, context_length: int | None) -> Source:
    """Bring a module to the shape that is traced; what its own code raises becomes one line."""
    try:
        if isinstance(module, PreTrainedModel):
            return source_from_model(module, context_length=context_length)
        return source_from_module(module, context_length=context_length)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(module).__name__} failed on two tokens: {first_line(innermost(error))}") from error
