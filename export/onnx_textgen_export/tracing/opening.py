"""Opens what the user names: a module, a checkpoint folder or a hub name becomes a module, weights and text assets."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from onnx_textgen.errors import OptionError, first_line
from onnx_textgen.package.hf_settings import read_json

from ..errors import ExportError, innermost, named_versions
from ..gguf.gguf_file import is_gguf
from ..reports import Report
from ..sources.own_module import source_from_module
from ..sources.source import Source
from ..sources.tiny_transformer import TinyTransformer
from ..tokenization.conversion import read_tokenizer
from ..tokenization.text_assets import TextAssets, read_text_assets
from ..weights.adapter import SETTINGS, Adapter
from ..weights.streamed import OwnWeights, Weights, is_of_transformers, stand_ins
from .adapters import is_of_peft, merged, without_adapters
from .hub import resolve_adapter, resolve_source


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A decoder with its weights and text assets, before anything was done with it."""

    module: nn.Module
    weights: Weights
    assets: TextAssets
    name: str
    origin: str
    source_path: Path | None = None
    """The file or folder that the weights are read from; None for a module."""


def open_source(
    source: str | Path | nn.Module,
    *,
    tokenizer: str | Path | Tokenizer | None = None,
    adapter: str | Path | None = None,
    allow_pickle: bool = False,
    report: Report = lambda stage: None,
) -> Opened:
    """Open a module, `file.py:name`, a checkpoint folder, a GGUF file, or `owner/name` on the hub.

    adapter: a LoRA adapter, as its folder or `owner/name` on the hub, which is merged into the weights. Raises `ExportError` in
    one line.
    """
    if adapter is None:
        return open_base(source, tokenizer=tokenizer, adapter=None, allow_pickle=allow_pickle, report=report)
    opened_adapter = Adapter(resolve_adapter(adapter, report, allow_pickle=allow_pickle), allow_pickle=allow_pickle)
    opened = open_base(source, tokenizer=tokenizer, adapter=opened_adapter, allow_pickle=allow_pickle, report=report)
    name = name_of(adapter)
    return dataclasses.replace(opened, name=f"{opened.name}-{name}", origin=f"{opened.origin} with the adapter {name}")


def open_base(
    source: str | Path | nn.Module,
    *,
    tokenizer: str | Path | Tokenizer | None,
    adapter: Adapter | None,
    allow_pickle: bool,
    report: Report,
) -> Opened:
    """Open a source, with an adapter merged into its weights."""
    given = tokenizer if tokenizer is None or isinstance(tokenizer, Tokenizer) else read_tokenizer(Path(tokenizer))
    if isinstance(source, str) and is_import(source):
        source = import_module(source)
    if isinstance(source, nn.Module):
        module = as_it_runs(unwrapped(source))
        origin = f"the module {type(module).__qualname__}"
        name, module = type(module).__name__, merged(module, adapter)
        return Opened(module, OwnWeights(module), TextAssets(tokenizer=given), name, origin)
    if is_gguf(Path(source)):
        return open_gguf_file(Path(source), given, adapter)
    folder = resolve_source(source, report, allow_pickle=allow_pickle)
    if folder.is_file():
        return open_gguf_file(folder, given, adapter)
    if (folder / SETTINGS).is_file() and not (folder / "config.json").is_file():
        base = Adapter(folder, allow_pickle=allow_pickle).base or "BASE"
        raise ExportError(f"{folder} is an adapter; export its base with it: onnx-textgen export {base} --adapter {folder}")
    weights: Weights
    if read_json(folder / "config.json").get("model_type") == "tiny_transformer":
        module = merged(TinyTransformer.from_folder(folder), adapter)
        weights = OwnWeights(module)
    else:
        with named_versions():
            from ..huggingface.checkpoint import open_checkpoint, refuse_code  # noqa: PLC0415

        refuse_code(folder)
        module, weights = open_checkpoint(folder, allow_pickle=allow_pickle, adapter=adapter)
    name = name_of(source)
    assets = read_text_assets(folder, tokenizer=given, adapter=None if adapter is None else adapter.folder)
    return Opened(module, weights, assets, name, f"the checkpoint {name}", folder)


def name_of(source: str | Path) -> str:
    """The name of a folder, or of a repository of the hub."""
    return Path(source).resolve().name if Path(source).is_dir() else str(source).partition("@")[0].rpartition("/")[2]


def open_gguf_file(path: Path, tokenizer: Tokenizer | None, adapter: Adapter | None) -> Opened:
    """Open a GGUF file, whose settings and tokenizer pass through a temporary checkpoint folder."""
    with named_versions():
        from ..gguf.gguf_checkpoint import open_gguf  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="onnx-textgen-") as folder:
        module, weights = open_gguf(path, Path(folder), has_tokenizer=tokenizer is not None, adapter=adapter)
        assets = read_text_assets(Path(folder), tokenizer=tokenizer, adapter=None if adapter is None else adapter.folder)
    return Opened(module, weights, assets, path.stem, f"the GGUF file {path.name}", path)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile and parallel training."""
    with named_versions():
        from torch._dynamo import OptimizedModule  # noqa: PLC0415  (private to torch)

    while isinstance(module, OptimizedModule | nn.DataParallel | DistributedDataParallel):
        module = module._orig_mod if isinstance(module, OptimizedModule) else module.module
    if is_of_peft(module):
        return without_adapters(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError("the module is TorchScript, which cannot be traced again; give the nn.Module that it was made from")
    return module


def as_it_runs(module: nn.Module) -> nn.Module:
    """The module in float32 on the CPU; a copy if the caller's module is not."""
    tensors = (*module.parameters(), *module.buffers())
    if any(tensor.is_meta for tensor in tensors):
        raise ExportError(
            f"{type(module).__name__} has parameters on the meta device, which have no numbers; load its weights first"
        )
    if all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors if t.is_floating_point()):
        return module
    return copy.deepcopy(module).to("cpu", torch.float32)


@contextlib.contextmanager
def as_source(opened: Opened, context_length: int | None) -> Iterator[Source]:
    """The decoder as a `Source`, in evaluation mode; errors of the module's code become one line."""
    module, was_training = opened.module, opened.module.training
    module.train(False)
    try:
        with opened.weights.present(), stand_ins():
            source = make_source(module, context_length)
        yield source
    finally:
        module.train(was_training)


def make_source(module: nn.Module, context_length: int | None) -> Source:
    """A source from a transformers model, or from any other module."""
    try:
        if is_of_transformers(module):
            with named_versions():
                from ..huggingface.opening import source_from_model  # noqa: PLC0415

            return source_from_model(cast(Any, module), context_length=context_length)
        return source_from_module(module, context_length=context_length)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"{type(module).__name__} failed on two tokens: {first_line(innermost(error))}") from error


def is_import(source: str) -> bool:
    """Return whether `source` names a Python object (`file.py:name`, `package.module:name`) rather than a folder."""
    module, colon, attribute = source.rpartition(":")
    return bool(colon) and attribute.isidentifier() and len(module) > 1 and not Path(source).exists()


def run_file(path: Path) -> ModuleType:
    """Run a file as a module, under another name, so that a `random.py` does not replace Python's module."""
    spec = importlib.util.spec_from_file_location(f"onnx_textgen_source_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a .py path has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def import_module(source: str) -> nn.Module:
    """Run the user's file and return the decoder that it defines or builds."""
    where, _, attribute = source.rpartition(":")
    try:
        module = run_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, FileNotFoundError) as error:
        raise OptionError(f"cannot import {where}: {error}") from error
    found: Any = getattr(module, attribute, None)
    if found is None:
        raise OptionError(f"{where} defines no {attribute}; name an nn.Module, or a function without arguments that returns one")
    made = found if isinstance(found, nn.Module) else found()
    if not isinstance(made, nn.Module):
        raise OptionError(f"{source} gave {type(made).__name__}; it should be an nn.Module, or a function that returns one")
    return made
