"""`verify --runtime`: golden continuations compared with those that another runtime writes."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import typer

import onnx_textgen
from onnx_textgen.backends.openvino import session as openvino_session
from onnx_textgen.cli import run
from onnx_textgen.cli.commands.verify import RuntimeName, verify_elsewhere
from onnx_textgen.diagnostics.golden_elsewhere import compare_golden, expected_ids
from onnx_textgen.diagnostics.runtimes.finding import RUNTIMES
from onnx_textgen.diagnostics.runtimes.own_engine import OwnEngine
from onnx_textgen.diagnostics.runtimes.protocol import Rounding, Task
from onnx_textgen.errors import PackageError
from onnx_textgen.installation import add_extra
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.manifest import GENAI_CONFIG, MANIFEST, GoldenRun, Manifest, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from support.cli_model import CharacterModel
from support.processor import needs_vnni

EXACT = Path(__file__).parents[2] / "packages" / "ort"
FOLDER = Path("package")


@dataclasses.dataclass(frozen=True)
class Scripted:
    """A runtime that writes what it is told to."""

    written: list[tuple[int, ...]]
    rounding: Rounding = "onnxruntime"
    name: str = "scripted 1.0"
    asked: list[Task] = dataclasses.field(default_factory=list)

    def continue_greedily(self, folder: Path, manifest: Manifest, tasks: list[Task]) -> list[tuple[int, ...]]:
        self.asked.extend(tasks)
        return self.written


def manifest_of(*golden: GoldenRun, **changes: object) -> Manifest:
    return dataclasses.replace(CharacterModel().manifest, files={}, golden=golden, **changes)


def test_the_first_token_that_differs_is_found_with_the_gap_of_our_own_logits() -> None:
    model = CharacterModel()
    manifest = manifest_of(GoldenRun((97,), (98, 99, 100)), GoldenRun((100,), (101, 102)))
    runtime = Scripted([(98, 50, 51), (101, 102)])
    different, same = compare_golden(runtime, FOLDER, manifest, model.new_context)
    assert (different.first_difference, different.expected_id, different.found_id, different.is_equal) == (1, 99, 50, False)
    assert (same.first_difference, same.gap, same.is_equal) == (None, None, True)
    logits = sorted(model.new_context().feed([97, 98])[-1])
    assert different.gap == pytest.approx((logits[-1] - logits[-2]) / max(map(abs, logits)), rel=1e-5)
    assert runtime.asked == [Task((97,), 3), Task((100,), 2)]


def test_a_continuation_is_compared_as_far_as_its_text_goes() -> None:
    end = CharacterModel().manifest.eos_ids[0]
    manifest = manifest_of(GoldenRun((97,), (98, end, 99)), GoldenRun((97,), (98, end, 99)), GoldenRun((97,), (98, 99)))
    found = compare_golden(Scripted([(98,), (98, 99), (98,)]), FOLDER, manifest, CharacterModel().new_context)
    assert [(one.first_difference, one.expected_id, one.found_id) for one in found] == [
        (None, None, None),
        (1, None, 99),
        (1, 99, None),
    ]


@pytest.mark.parametrize(
    ("rounding", "accuracy_level", "exact_ids", "expected"),
    [
        ("none", 4, (5, 6), ((5, 6), True)),
        ("onnxruntime", 4, (5, 6), ((5, 7), False)),
        ("own", 4, (5, 6), ((5, 7), False)),
        ("none", 4, (), ((5, 7), False)),
        ("none", 0, (5, 6), ((5, 7), False)),
    ],
)
def test_a_runtime_without_rounding_is_compared_with_the_continuation_in_float32(
    rounding: Rounding, accuracy_level: int, exact_ids: tuple[int, ...], expected: tuple[tuple[int, ...], bool]
) -> None:
    manifest = manifest_of(precision="int8", quantization={"accuracy_level": accuracy_level})
    assert expected_ids(GoldenRun((1,), (5, 7), exact_ids), manifest, rounding) == expected


@pytest.mark.parametrize(
    ("precision", "quantization", "is_exact"),
    [
        ("fp32", {}, True),
        ("fp16", {}, False),
        ("int8", {}, False),
        ("int8", {"accuracy_level": 4}, False),
        ("int4", {"accuracy_level": 0}, True),
    ],
)
def test_a_package_is_exact_in_float32_or_if_it_asks_for_it(precision: str, quantization: dict[str, int], is_exact: bool) -> None:
    assert manifest_of(precision=precision, quantization=quantization).is_exact is is_exact


def test_the_ids_in_float32_are_written_to_a_manifest_only_where_there_are_any(tmp_path: Path) -> None:
    manifest = manifest_of(GoldenRun((97,), (98, 99), (98, 50)), GoldenRun((97,), (98,)))
    text = manifest_to_json(manifest)
    assert [sorted(one) for one in json.loads(text)["golden"]] == [
        ["exact_ids", "new_ids", "prompt_ids"],
        ["new_ids", "prompt_ids"],
    ]
    (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    assert read_manifest(tmp_path).golden == manifest.golden
    wrong = manifest_of(GoldenRun((97,), (98,), (10**6,)))
    (tmp_path / MANIFEST).write_text(manifest_to_json(wrong), encoding="utf-8")
    with pytest.raises(PackageError, match="outside the vocabulary"):
        read_manifest(tmp_path)


def test_our_own_engine_continues_as_generate_does() -> None:
    with onnx_textgen.load(EXACT, device="cpu", threads=1) as model:
        ids = tuple(model.encode("Once upon a time"))
        wanted = model.generate(list(ids), max_new_tokens=20, temperature=0).token_ids
    assert OwnEngine("cpu", 1).continue_greedily(EXACT, read_manifest(EXACT), [Task(ids, 20), Task(ids, 1)]) == [wanted, wanted[:1]]


def test_every_runtime_of_the_command_line_has_its_file() -> None:
    assert [each.value for each in RuntimeName] == list(RUNTIMES)


@needs_vnni
def test_genai_writes_the_golden_continuations_of_the_embedded_models(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime_genai", reason="the runtime that is asked for")
    for name in ("story", "tiny-transformer"):
        assert run(["verify", name, "--runtime", "genai"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith(": 3 of 3 golden continuations are the same")


def test_openvino_writes_the_golden_continuations_of_a_package_in_float32(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino", reason="the runtime that is asked for")
    assert run(["verify", str(EXACT), "--runtime", "openvino", "--threads", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("openvino ")


def test_a_continuation_that_differs_is_a_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = read_manifest(find_package("story")).golden
    written = [(*first.new_ids[:4], 7, *first.new_ids[5:]), *(each.new_ids for each in others)]
    for name, rounding in (("genai", "onnxruntime"), ("openvino", "own")):
        monkeypatch.setitem(RUNTIMES, name, lambda rounding=rounding: Scripted(written, rounding))
        assert run(["verify", "story", "--runtime", name]) == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].startswith(
        f"golden 1: DIFFERENT at new token 5 of 32: 7 instead of {first.new_ids[4]}; our two largest logits are "
    )
    assert lines[1] == "scripted 1.0: 2 of 3 golden continuations are the same"
    assert "this runtime does so in its own way; export the model with --exact" in lines[2]


@pytest.mark.parametrize("changes", [{"precision": "fp16"}, {"precision": "int4", "quantization": {"activations": "fp16"}}])
def test_the_reason_for_a_difference_of_a_float16_package_is_float16(changes: dict[str, object]) -> None:
    model, lines = CharacterModel(), list[str]()
    manifest = manifest_of(GoldenRun((97,), (98, 99)), **changes)
    with pytest.raises(typer.Exit):
        verify_elsewhere(Scripted([(98, 50)]), FOLDER, manifest, model.new_context, say=lines.append, as_json=False)
    assert "computes in float16" in lines[-1] and "8 bits" not in lines[-1]


def test_the_result_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written = [each.new_ids for each in read_manifest(find_package("story")).golden]
    monkeypatch.setitem(RUNTIMES, "genai", lambda: Scripted(written))
    assert run(["verify", "story", "--runtime", "genai", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_right"], found["runtime"]) == (True, {"name": "scripted 1.0", "rounding": "onnxruntime"})
    assert [(one["is_equal"], one["new_tokens"]) for one in found["golden"]] == [(True, 32)] * 3


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("genai", "onnxruntime_genai", "pip install onnxruntime-genai"),
        ("openvino", "openvino", add_extra("openvino")),
    ],
)
def test_a_runtime_that_is_not_installed_is_a_line_with_the_command_that_installs_it(
    name: str, module: str, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in [each for each in sys.modules if each.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, each)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(openvino_session, "wrong_version", lambda error: None)  # its metadata are still there
    assert run(["verify", "story", "--runtime", name]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), command in err) == ("", 1, True)


def test_a_package_without_the_files_of_genai_says_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai", reason="the runtime that is asked for")
    assert GENAI_CONFIG not in read_manifest(EXACT).files
    with pytest.raises(PackageError, match=f"has no {GENAI_CONFIG}"):
        RUNTIMES["genai"]().continue_greedily(EXACT, read_manifest(EXACT), [Task((1,), 2)])


def test_two_comparisons_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "story", "--runtime", "genai", "--against", "x"]) == 2
    assert "make them one after the other" in capsys.readouterr().err
