"""The graphs by which transformers.js opens an encoder-decoder: their form, and that they write what the package writes."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onnx_textgen
from onnx_textgen_export import ExportError, export
from onnx_textgen_export.extra_graphs import seq2seq_graphs
from support.tiny_encoder_decoders import END, tiny_encoder_decoder

NUMBERS = Path(__file__).resolve().parents[2] / "packages" / "numbers"


def greedy(folder: Path, sources: list[list[int]], new: int) -> list[list[int]]:
    """Greedy texts of sources by plain ONNX Runtime, as transformers.js runs the graphs: shorter sources are padded."""
    encoder, decoder = (
        onnxruntime.InferenceSession(str(folder / "onnx" / name)) for name in ("encoder_model.onnx", "decoder_model_merged.onnx")
    )
    longest = max(map(len, sources))
    ids = np.array([source + [0] * (longest - len(source)) for source in sources])
    mask = np.array([[1] * len(source) + [0] * (longest - len(source)) for source in sources])
    (states,) = encoder.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
    rows = len(sources)
    cache = {
        each.name: np.zeros((rows, each.shape[1], 0, each.shape[3]), np.float32)
        for each in decoder.get_inputs()
        if each.name.startswith("past_")
    }
    texts, chunk = [[] for _ in sources], np.zeros((rows, 1), np.int64)
    for _ in range(new):
        given = {"input_ids": chunk, "encoder_hidden_states": states, "encoder_attention_mask": mask}
        logits, *presents = decoder.run(None, given | cache)
        cache = dict(zip(cache, presents, strict=True))
        chunk = logits[:, -1].argmax(axis=-1)[:, None]
        for text, token_id in zip(texts, chunk[:, 0].tolist(), strict=True):
            text.append(token_id)
    return texts


def test_sources_padded_in_a_batch_are_written_as_the_package_writes_them() -> None:
    model = onnx_textgen.load(NUMBERS, device="cpu", threads=1)
    sources = [model.tokenizer.encode(number) for number in ("340071", "7", "42")]
    ours = [model.generate(source, temperature=0, ignore_eos=False).token_ids for source in sources]
    for text, wanted in zip(greedy(NUMBERS, sources, 9), ours, strict=True):
        assert text[: text.index(model.manifest.eos_ids[0])] == list(wanted)


def test_inputs_outputs_and_sizes_are_those_that_transformers_js_knows() -> None:
    found = {}
    for name in ("encoder_model", "decoder_model_merged"):
        graph = onnx.load(NUMBERS / "onnx" / f"{name}.onnx", load_external_data=False).graph
        found[name] = [{value.name for value in values} for values in (graph.input, graph.output)]
        first = {value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)}
        assert first == {"batch_size"}, "transformers.js takes any other name for 0"
        assert not [node for node in graph.node if node.op_type == "If"]
    assert found["encoder_model"] == [{"input_ids", "attention_mask"}, {"last_hidden_state"}]
    own = {f"{layer}.decoder.{kind}" for layer in (0, 1) for kind in ("key", "value")}
    taken = {"input_ids", "encoder_hidden_states", "encoder_attention_mask", *(f"past_key_values.{name}" for name in own)}
    assert found["decoder_model_merged"] == [taken, {"logits", *(f"present.{name}" for name in own)}]


@pytest.mark.slow
def test_graphs_that_write_something_else_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those that take the keys of a layer for its values."""
    own = seq2seq_graphs.join_cross

    def swapped(encoder: ir.Graph) -> None:
        own(encoder)
        key, value, *_ = encoder[-1].inputs
        encoder[-1].replace_input_with(0, value)
        encoder[-1].replace_input_with(1, key)

    monkeypatch.setattr(seq2seq_graphs, "join_cross", swapped)
    with pytest.raises(ExportError, match=r"onnx/decoder_model_merged\.onnx disagrees with model\.onnx"):
        export(tiny_encoder_decoder("t5"), tmp_path / "out", eos_ids=(END,), context_length=128)
    assert list(tmp_path.iterdir()) == []


def test_they_are_left_out_on_request(tmp_path: Path) -> None:
    made = export(tiny_encoder_decoder("t5"), tmp_path / "out", eos_ids=(END,), context_length=128, other_runtimes=False)
    assert set(made.manifest.files) == {"model.onnx", "encoder_model.onnx", "onnx/model.onnx_data"}
