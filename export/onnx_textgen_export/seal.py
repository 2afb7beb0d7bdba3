"""`python -m onnx_textgen_export.seal DIR ...`: add to manifests the sha256 of themselves that older exports did not write.

Nothing else changes. A package without it opens too; with it, damage to the manifest is detected.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from onnx_textgen.errors import OnnxTextgenError
from onnx_textgen.package.integrity import check_files
from onnx_textgen.package.reading import read_manifest

from .package.folder import replace_manifest


def seal_package(folder: Path) -> None:
    """Rewrite a package's manifest after checking its files against it; raises `PackageError` if they differ."""
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    replace_manifest(folder, manifest)


def main(arguments: Sequence[str] | None = None) -> None:
    """Seal the folders that are named."""
    parser = argparse.ArgumentParser(prog="python -m onnx_textgen_export.seal", description="Add a manifest's own sha256.")
    parser.add_argument("folder", type=Path, nargs="+", help="a package")
    for folder in parser.parse_args(arguments).folder:
        try:
            seal_package(folder)
        except OnnxTextgenError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
