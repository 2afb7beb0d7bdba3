"""The packages whose texts are compared: those that ship, and exports of checkpoints, each with its form in float32."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import onnx

from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import MANIFEST, Manifest, manifest_to_json
from onnx_textgen.package.reading import read_manifest

EMBEDDED = ("story", "tiny-transformer")
PRECISIONS = ("fp32", "int8", "int4")
TARGETS = ("ort", "standard")


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A package, and the one of the same weights whose products are in float32."""

    model: str
    folder: Path
    exact: Path
    """The same folder if it is exact itself."""

    @property
    def manifest(self) -> Manifest:
        """Of the package."""
        return read_manifest(self.folder)

    @property
    def name(self) -> str:
        """What the table calls it."""
        manifest = self.manifest
        kind = " `--exact`" if manifest.is_exact and manifest.precision != "fp32" else ""
        return f"{self.model} {manifest.precision} {manifest.target}{kind}"


def embedded_forms(work: Path) -> list[Form]:
    """The models that ship with onnx-textgen, and their forms in float32."""
    return [form for name in EMBEDDED for form in given_forms(find_package(name), work)]


def given_forms(package: Path, work: Path) -> list[Form]:
    """A package that is there already, and its form in float32: the folder of the same name with `-exact`, or it is made."""
    manifest = read_manifest(package)
    if manifest.is_exact:
        return [Form(manifest.name, package, package)]
    exact = package.with_name(f"{package.name}-exact")
    exact = exact if exact.is_dir() else work / exact.name
    if not (exact / MANIFEST).exists():
        make_exact(package, manifest, exact)
    return [Form(manifest.name, package, exact), Form(manifest.name, exact, exact)]


def exported_forms(name: str, checkpoint: str, work: Path, options: list[str]) -> list[Form]:
    """A checkpoint at every precision and target, and as `--exact`; what is there already is taken."""
    forms = []
    for precision in PRECISIONS:
        for target in TARGETS:
            package, exact = (work / f"{name}-{precision}-{target}{kind}" for kind in ("", "-exact"))
            export(checkpoint, package, ["--precision", precision, "--target", target], options)
            if precision == "fp32":
                forms.append(Form(name, package, package))
                continue
            export(checkpoint, exact, ["--precision", precision, "--target", target, "--exact"], options)
            forms += [Form(name, package, exact), Form(name, exact, exact)]
    return forms


def export(checkpoint: str, out: Path, form: list[str], options: list[str]) -> None:
    """Export, unless it was done before; options of int4 alone are left out elsewhere."""
    if (out / MANIFEST).exists():
        return
    print(f"exporting {out.name} ...", file=sys.stderr, flush=True)
    given = options if "int4" in form else []
    command = [sys.executable, "-m", "onnx_textgen.cli", "export", checkpoint, "--out", str(out), *form, *given]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_exact(package: Path, manifest: Manifest, out: Path) -> None:
    """Copy a package of target `ort`, with products in float32, as `export --exact` would have made it."""
    if manifest.target != "ort":
        raise ValueError(f"{package} has the target {manifest.target}; give its checkpoint instead")
    shutil.copytree(package, out)
    for name in (name for name in manifest.files if name.endswith(".onnx")):
        graph = onnx.load(out / name, load_external_data=False)
        for node in graph.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 0
        onnx.save(graph, out / name)
    files = {name: file_record(out / name) for name in manifest.files}
    changed = dataclasses.replace(manifest, files=files, quantization={**manifest.quantization, "accuracy_level": 0})
    (out / MANIFEST).write_text(manifest_to_json(changed), encoding="utf-8")
