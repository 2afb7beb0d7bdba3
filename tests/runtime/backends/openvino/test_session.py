"""The second engine gives what ONNX Runtime gives, whatever is done with the text."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Cancellation, Model
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.backends.openvino.session import open_openvino
from onnx_textgen.errors import DeviceError, OptionError, PackageError, PromptError
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.graph_runner import GraphRunner
from onnx_textgen.installation import add_extra
from onnx_textgen.package.locate import find_package
from onnx_textgen.package.reading import read_manifest
from support.examples import examples

pytest.importorskip("openvino", reason='the second engine needs pip install "onnx-textgen[openvino]"')
PACKAGES = Path(__file__).parents[3] / "packages"
EXACT = PACKAGES / "ort"
GRAPH = EXACT / "model.onnx"
TEXTS = ("Once upon a time", "The dog", "It was raining, and Lily", "A")


@pytest.fixture(scope="module")
def theirs() -> Model:
    return onnx_textgen.load(EXACT, device="cpu", threads=1)


@pytest.fixture(scope="module")
def ours() -> Model:
    return onnx_textgen.load(EXACT, device="openvino", threads=1)


@pytest.fixture(scope="module")
def tale() -> Model:
    """The embedded model, whose weights have 8 bits and whose embeddings have too."""
    return onnx_textgen.load(device="openvino", threads=1)


def ids_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, 258, length).tolist()


def test_logits_of_every_position_are_those_of_onnx_runtime(theirs: Model, ours: Model) -> None:
    for length in (1, 2, 31, 32, 33, 150):
        expected, found = (model.new_context().feed(ids_of(length), every_position=True) for model in (theirs, ours))
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_embedded_model_takes_the_same_tokens_but_for_close_calls(story: Model, tale: Model) -> None:
    """Its activations are rounded to 8 bits, and each engine rounds and adds up in a way of its own."""
    ids = [*story.tokenizer.encode(TEXTS[0]), *story.generate(TEXTS[0], max_new_tokens=300, temperature=0).token_ids]
    expected, found = (model.new_context().feed(ids, every_position=True) for model in (story, tale))
    assert np.abs(found - expected).max() < 0.5
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.95
    assert tale.device == "openvino"


def test_a_graph_with_functions_of_its_own_is_refused_here_too(tmp_path: Path) -> None:
    function = b"\xca\x01\x02\x0a\x00"  # number 25 of a model
    (tmp_path / "model.onnx").write_bytes(GRAPH.read_bytes() + function)
    with pytest.raises(PackageError, match="defines functions"):
        open_openvino(tmp_path / "model.onnx", device="openvino")


@pytest.mark.parametrize("has_zeros", [True, False])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 16)])
def test_embeddings_in_few_bits_are_read_as_onnx_runtime_reads_them(
    theirs: Model, tmp_path: Path, bits: int, block: int, has_zeros: bool
) -> None:
    onnx = pytest.importorskip("onnx", reason="a graph is changed here")
    model, random = onnx.load(GRAPH), np.random.default_rng(0)
    lookup = next(node for node in model.graph.node if node.op_type == "Gather" and node.input[1] == "input_ids")
    rows, columns = 258, 32
    parts = {
        "codes": random.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8),
        "scales": random.random((rows, columns // block), dtype=np.float32),
        "zeros": random.integers(0, 256, (rows, -(-columns // block * bits // 8)), dtype=np.uint8),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in parts.items())
    inputs = ["codes", "input_ids", "scales", *(["zeros"] if has_zeros else [])]
    sizes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    packed = onnx.helper.make_node("GatherBlockQuantized", inputs, list(lookup.output), domain="com.microsoft", **sizes)
    lookup.CopyFrom(packed)
    onnx.save(model, tmp_path / "model.onnx")
    expected, found = (
        Decoder(graph, theirs.manifest.geometry).feed(ids_of(40), every_position=True)
        for graph in (
            open_session(tmp_path / "model.onnx", device="cpu"),
            open_openvino(tmp_path / "model.onnx", device="openvino"),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_package_that_asks_for_products_in_float32_gets_them_on_every_processor(tmp_path: Path) -> None:
    """OpenVINO does not read the level from the graph; where the processor has VNNI or AMX it rounds unless told otherwise."""
    onnx = pytest.importorskip("onnx", reason="a graph is changed here")
    folder = find_package("story")
    graph = onnx.load(folder / "model.onnx", load_external_data=False)
    levels = [each for node in graph.graph.node for each in node.attribute if each.name == "accuracy_level"]
    assert {each.i for each in levels} == {4}
    for each in levels:
        each.i = 0
    onnx.save(graph, tmp_path / "model.onnx")
    shutil.copytree(folder / "onnx", tmp_path / "onnx")
    geometry, ids = read_manifest(folder).geometry, ids_of(60)
    expected, found = (
        Decoder(opened, geometry).feed(ids, every_position=True)
        for opened in (
            open_session(tmp_path / "model.onnx", device="cpu"),
            open_openvino(tmp_path / "model.onnx", device="openvino", is_exact=True),
        )
    )
    np.testing.assert_allclose(found, expected, atol=2e-4)  # rounded inputs move these logits by 0.2


@pytest.mark.parametrize("cut", [1, 2, 32, 40])
def test_a_prompt_fed_in_parts_gives_what_it_gives_whole(ours: Model, cut: int) -> None:
    whole, parts = ours.new_context(), ours.new_context()
    expected = whole.feed(ids_of(70))
    for start in range(0, 70, cut):
        found = parts.feed(ids_of(70)[start : start + cut])
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_rows_of_unequal_length_step_together_and_idle_rows_stay(theirs: Model, ours: Model) -> None:
    decoders = [Decoder(model.graph, model.manifest.geometry, rows=3, capacity=4) for model in (theirs, ours)]
    assert decoders[1].can_batch_decode
    for row, length in enumerate((5, 64, 33)):
        for decoder in decoders:
            decoder.feed(ids_of(length, row), row=row)
    for step in range(40):
        active = [True, step % 2 == 0, step < 30]
        expected, found = (decoder.step([step + 2, step + 3, step + 4], active) for decoder in decoders)
        np.testing.assert_allclose(found[active], expected[active], atol=1e-4)
    assert decoders[1].cache.lengths == [45, 84, 63]


@examples(20)
@given(lengths=st.lists(st.integers(20, 30), min_size=2, max_size=5), held=st.integers(0, 3))
def test_prompts_of_unequal_length_fed_in_one_run_are_those_fed_alone(ours: Model, lengths: list[int], held: int) -> None:
    """The padding behind a shorter prompt leaves nothing that its later tokens see, in fresh blocks and in ones that were used."""
    together = Decoder(ours.graph, ours.manifest.geometry, rows=8, capacity=4)
    prompts = [ids_of(length, row) for row, length in enumerate(lengths)]
    for row in range(held):
        together.feed(ids_of(40, 9), row=row)  # rows before the prompts, which stay
    together.feed(ids_of(70, 8), row=held)
    together.rewind(0, row=held)
    assert together.can_prefill_together(lengths, 512)
    first = together.prefill_rows(prompts, held)
    then = together.step([5] * (held + len(prompts)), [True] * (held + len(prompts)))[held:]
    for index, prompt in enumerate(prompts):
        alone = ours.new_context()
        np.testing.assert_allclose(first[index], alone.feed(prompt)[-1], atol=1e-4)
        np.testing.assert_allclose(then[index], alone.feed([5])[-1], atol=1e-4)
        assert alone.exact_length[0] == len(prompt)
        assert together.exact_length[held + index] == 0  # as rows differ in their last bits


def test_prompts_that_arrive_together_are_fed_in_one_run(ours: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, run = list[tuple[int, ...]](), GraphRunner.run

    def recorded(runner: GraphRunner, cache: Any, ids: Any, *arguments: Any, **named: Any) -> Any:
        shapes.append(ids.shape)
        return run(runner, cache, ids, *arguments, **named)

    monkeypatch.setattr(GraphRunner, "run", recorded)
    ours.generate([ids_of(20, 100 + seed) for seed in range(4)], max_new_tokens=5, temperature=0, ignore_eos=True)
    assert shapes == [(4, 20), *[(4, 1)] * 4]


def test_a_row_is_taken_back_forked_and_filled_anew_in_the_blocks_that_there_are(ours: Model) -> None:
    decoder = Decoder(ours.graph, ours.manifest.geometry, rows=2, capacity=200)
    decoder.feed(ids_of(100))
    decoder.rewind(50)
    decoder.fork(0, 1)
    ends = [decoder.feed(ids_of(20, 7), row=row) for row in (0, 1)]
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-5)
    fresh = ours.new_context().feed([*ids_of(100)[:50], *ids_of(20, 7)])
    np.testing.assert_allclose(ends[0], fresh, atol=1e-4)
    capacity = decoder.cache.capacity
    for _ in range(5):
        decoder.rewind(0)
        decoder.feed(ids_of(100))
    assert decoder.cache.capacity == capacity


def test_a_snapshot_goes_from_either_engine_to_the_other(theirs: Model, ours: Model) -> None:
    for first, second in ((theirs, ours), (ours, theirs)):
        source, target = first.new_context(), second.new_context()
        source.feed(ids_of(75))
        target.restore(source.snapshot(), 70)
        expected, found = second.new_context().feed(ids_of(75)), target.feed(ids_of(75)[70:])
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_sessions_go_on_are_taken_back_forked_and_kept_in_files(theirs: Model, ours: Model, tmp_path: Path) -> None:
    texts = []
    for model in (theirs, ours):
        session = model.session()
        session.append("Once upon a time")
        mark = len(session)
        session.generate(max_new_tokens=30, temperature=0, ignore_eos=True)
        other = session.fork()
        session.rewind(mark)
        session.append(" there was a cat")
        other.append(" The end.")
        session.save(tmp_path / "tale.session")
        back = model.load_session(tmp_path / "tale.session")
        texts.append([each.generate(max_new_tokens=20, temperature=0, ignore_eos=True).text for each in (session, other, back)])
    assert texts[1] == texts[0]
    assert texts[1][2] == texts[1][0]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"prompt_lookup_num_tokens": 4, "draft_verification": "fast"},
        {"num_return_sequences": 3, "temperature": 1.0, "seed": 3},
    ],
)
def test_every_way_to_generate_gives_what_it_gives_on_onnx_runtime(theirs: Model, ours: Model, options: dict[str, object]) -> None:
    options = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True} | options
    prompt = ids_of(12) * 3
    expected, found = (model.generate(prompt, **options) for model in (theirs, ours))
    assert found.token_ids == expected.token_ids
    assert [one.token_ids for one in found.sequences] == [one.token_ids for one in expected.sequences]


def test_texts_side_by_side_and_scores_are_those_of_onnx_runtime(theirs: Model, ours: Model) -> None:
    expected, found = (model.generate(list(TEXTS), max_new_tokens=25, temperature=0, ignore_eos=True) for model in (theirs, ours))
    assert [one.text for one in found] == [one.text for one in expected]
    scores = [model.score("Lily went to the park.") for model in (theirs, ours)]
    assert scores[1].perplexity == pytest.approx(scores[0].perplexity, rel=1e-4)


def test_a_text_may_fill_the_context_and_no_more(theirs: Model, ours: Model) -> None:
    most = ours.manifest.geometry.context_length
    expected, found = (model.generate(ids_of(most - 20), temperature=0, ignore_eos=True) for model in (theirs, ours))
    assert found.token_ids == expected.token_ids
    assert len(found.token_ids) == 20
    with pytest.raises(PromptError, match="do not fit"):
        ours.new_context().feed(ids_of(most + 1))


def test_a_run_is_ended_by_a_cancellation_and_the_context_goes_on(tale: Model) -> None:
    ids, endings = np.random.default_rng(0).integers(5, 4000, 500).tolist(), set()
    expected = tale.generate(ids, max_new_tokens=3, temperature=0).token_ids
    for delay in (0.0, 0.002, 0.01, 0.02, 0.05):
        context, cancel = tale.new_context(), Cancellation()
        timer = threading.Timer(delay, cancel.cancel)
        timer.start()
        chunks = list(tale.stream(ids, max_new_tokens=3, temperature=0, context=context, cancel=cancel))
        timer.join()
        endings.add(chunks[-1].finish_reason)
        again = [i for chunk in tale.stream(ids, max_new_tokens=3, temperature=0, context=context) for i in chunk.token_ids]
        assert tuple(again) == expected
    assert "cancelled" in endings


def changed(folder: Path, **attributes: object) -> Path:
    """The exact graph, with other attributes of its attention."""
    onnx = pytest.importorskip("onnx", reason="a graph is changed here")
    model = onnx.load(GRAPH)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            if "sinks" in attributes:
                node.input.extend([""] * (11 - len(node.input)) + ["sinks"])
            node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items() if name != "sinks")
    if "sinks" in attributes:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(attributes["sinks"], dtype=np.float32), "sinks"))
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(
    "attributes", [{"local_window_size": 8}, {"scale": 0.7}, {"sinks": [0.5, -1.0, 2.0, 0.0]}], ids=["window", "scale", "sinks"]
)
def test_windows_scales_and_sinks_are_those_of_the_graph(theirs: Model, tmp_path: Path, attributes: dict[str, object]) -> None:
    path = changed(tmp_path, **attributes)
    plain, expected, found = (
        Decoder(graph, theirs.manifest.geometry)
        for graph in (theirs.graph, open_session(path, device="cpu"), open_openvino(path, device="openvino"))
    )
    for ids in (ids_of(20), *([i] for i in range(9, 30))):
        before, wanted, given = (decoder.feed(ids) for decoder in (plain, expected, found))
        np.testing.assert_allclose(given, wanted, atol=1e-4)
    assert np.abs(wanted - before).max() > 0.01


def test_the_note_of_a_rotary_switch_is_read(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="a graph is changed here")
    model = onnx.load(GRAPH)
    onnx.helper.set_model_props(model, {"rotary_switch": "64"})
    onnx.save(model, tmp_path / "model.onnx")
    assert open_openvino(tmp_path / "model.onnx", device="openvino").rotary_switch == 64
    assert open_openvino(GRAPH, device="openvino").rotary_switch is None


def test_what_the_engine_cannot_do_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"has no softcap; use the device cpu for this model$"):
        open_openvino(changed(tmp_path, softcap=30.0), device="openvino")
    with pytest.raises(PackageError, match=r"target ort .* no GroupQueryAttention; use the device cpu for this model$"):
        onnx_textgen.load(PACKAGES / "standard", device="openvino")
    with pytest.raises(DeviceError, match="packages that onnx-textgen exported"):
        onnx_textgen.load(PACKAGES / "optimum", device="openvino")
    with pytest.raises(OptionError, match="openvino, openvino:bf16, hybrid or hybrid:bf16, found 'openvino:u8'"):
        onnx_textgen.load(EXACT, device="openvino:u8")
    with pytest.raises(OptionError, match="threads"):
        onnx_textgen.load(EXACT, device="openvino", threads=0)
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a")  # a model without a graph
    with pytest.raises(PackageError, match=r"OpenVINO cannot run model.onnx: .*; use the device cpu"):
        open_openvino(tmp_path / "model.onnx", device="openvino")


def test_without_the_library_the_line_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DeviceError, match=re.escape(add_extra("openvino"))):
        onnx_textgen.load(EXACT, device="openvino")


def test_nothing_is_reported_to_the_makers_and_nothing_is_written(tmp_path: Path) -> None:
    load = f"import sys, onnx_textgen; onnx_textgen.load({str(EXACT)!r}, device='openvino')"
    code = f"{load}; print('openvino_telemetry' in sys.modules)"
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | paths)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert not list(tmp_path.iterdir())


def test_bfloat16_is_close_or_refused_where_the_processor_has_none(story: Model) -> None:
    try:
        quick = onnx_textgen.load(device="openvino:bf16", threads=1)
    except DeviceError as error:
        assert "bfloat16" in str(error)
        return
    assert quick.device == "openvino:bf16"
    ids = story.tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved to play")
    expected, found = (model.new_context().feed(ids) for model in (story, quick))
    assert np.abs(found - expected).max() < 0.5
    source, target = quick.new_context(), quick.new_context()
    source.feed(ids)
    target.restore(source.snapshot(), len(ids) - 2)
    np.testing.assert_allclose(target.feed(ids[-2:]), found, atol=0.2)


INTERRUPTED = """
import gc, signal, sys
import onnx_textgen
models = [onnx_textgen.load(sys.argv[1], device="openvino", threads=1) for _ in range(2)]
while models:
    del models[0]
    gc.collect()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_an_exception_also_after_models_have_gone() -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(EXACT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
