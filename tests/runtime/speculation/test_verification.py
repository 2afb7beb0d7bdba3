"""Several tokens in one run, to the last bit as one by one; and the file format that the graph for it is written in."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen.backends.protocol import CPU
from onnx_textgen.backends.variants.single_attention import with_single_attention
from onnx_textgen.errors import PackageError
from onnx_textgen.files.onnx_wire import Message
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.speculation.verification import Verification, Verifier, make_verifier, measure

PACKAGE = Path(__file__).parents[2] / "packages" / "ort"
LOOKUP = {"prompt_lookup_num_tokens": 8}
DOG = "The dog ran to the park. The dog ran to the"


def rewritten(model: Model) -> bytes:
    """The graph with attention over one token at a time."""
    return with_single_attention((model.folder / "model.onnx").read_bytes(), model.graph.cache_tensors, "input_ids")


@pytest.mark.parametrize(
    "choice", [{"temperature": 0}, {"temperature": 0.6, "seed": 3}, {"temperature": 1.0, "top_k": 40, "seed": 7}]
)
def test_int8_texts_and_their_logits_are_those_without_guesses(story: Model, choice: dict) -> None:
    """Some of these came out otherwise when guesses were checked in a run as of any several tokens."""
    accepted = 0
    for prompt in (DOG, "Tom had a red ball. Tom had a", "One day, one day, one day", "She said no. He said no. She said"):
        wanted = {"max_new_tokens": 160, "ignore_eos": True, "logprobs": 2, **choice}
        plain, found = story.generate(prompt, **wanted), story.generate(prompt, **wanted, **LOOKUP)
        assert (found.token_ids, found.logprobs, found.alternatives) == (plain.token_ids, plain.logprobs, plain.alternatives)
        accepted += found.stats.accepted_tokens
    assert accepted > 5


def test_tokens_that_a_rule_forces_are_fed_as_without_guesses(story: Model) -> None:
    pytest.importorskip("llguidance")
    drafted = 0
    for seed in range(6):
        wanted = {"max_new_tokens": 120, "temperature": 1.0, "seed": seed, "regex": "( The [a-z ]{3,12} to the park\\.){4,8}"}
        plain, found = story.generate(DOG, **wanted), story.generate(DOG, **wanted, **LOOKUP)
        assert (found.token_ids, found.finish_reason) == (plain.token_ids, plain.finish_reason)
        drafted += found.stats.drafted_tokens
    assert drafted > 0


def test_a_cache_that_grows_in_the_middle_changes_nothing() -> None:
    small, large = (onnx_textgen.load(device="cpu", threads=1, capacity=capacity) for capacity in (1, 400))
    wanted = {"max_new_tokens": 250, "temperature": 0, "ignore_eos": True}
    assert small.generate(DOG, **wanted, **LOOKUP).token_ids == large.generate(DOG, **wanted).token_ids


def test_the_graph_is_opened_once_and_not_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = onnx_textgen.load(PACKAGE, device="cpu", threads=1), list[Verifier]()

    def make(*given: object) -> Verifier:
        made.append(make_verifier(*given))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("onnx_textgen.speculation.verification.make_verifier", make)
    model.generate([5, 9, 5, 9], max_new_tokens=4)
    model.generate([5, 9, 5, 9], max_new_tokens=4, draft_verification="fast", **LOOKUP)
    assert not made
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: model.generate([5, 9, 5, 9], max_new_tokens=4, **LOOKUP), range(4)))
    assert len(made) == 1


def test_where_nothing_takes_several_tokens_so_none_are_guessed(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_textgen.load(PACKAGE.with_name("standard"), device="cpu", threads=1)
    for _ in range(2):
        assert model.generate([5, 9] * 5, max_new_tokens=20, **LOOKUP).stats.drafted_tokens == 0
    assert caplog.messages == [
        "no tokens are guessed: its keys and values are not all kept in place by GroupQueryAttention; "
        'draft_verification "fast" may guess, and may change a text'
    ]
    elsewhere = Verification(type("Elsewhere", (), {"device": CPU})(), model.manifest.geometry, lambda: 0)  # type: ignore[arg-type]
    assert elsewhere.verifier() is None


def test_without_memory_for_the_weights_again_none_are_guessed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = onnx_textgen.load(PACKAGE, device="cpu", threads=1)
    monkeypatch.setattr("onnx_textgen.speculation.verification.available_bytes", lambda: 1000)
    assert model.generate([5, 9] * 5, max_new_tokens=20, **LOOKUP).stats.drafted_tokens == 0
    assert "exact verification opens the weights again" in caplog.messages[0]


def test_a_graph_that_computes_otherwise_is_found_out(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = story.generator.verification.verifier()
    assert verifier is not None
    real, runs = Decoder.verify, [0]

    def nearly(self: Decoder, *given: object, **named: object) -> np.ndarray:
        runs[0] += 1
        found = real(self, *given, **named)  # type: ignore[arg-type]
        return np.nextafter(found, np.float32(np.inf)) if runs[0] == 3 else found

    monkeypatch.setattr(Decoder, "verify", nearly)
    with pytest.raises(onnx_textgen.OnnxTextgenError, match="4 tokens in one run are computed otherwise"):
        measure(verifier, story.graph, story.manifest.geometry)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda node: node.input.extend([*[""] * (10 - len(node.input)), "bias"]), "has inputs or outputs other than"),
        (lambda node: node.output.append("scores"), "has inputs or outputs other than"),
        (lambda node: setattr(node, "op_type", "OtherAttention"), "not all kept in place"),
    ],
)
def test_attention_of_another_kind_is_refused(story: Model, change, why: str) -> None:
    found = onnx.load(story.folder / "model.onnx", load_external_data=False)
    change(next(node for node in found.graph.node if node.op_type == "GroupQueryAttention"))
    with pytest.raises(PackageError, match=why):
        with_single_attention(found.SerializeToString(), story.graph.cache_tensors, "input_ids")


def test_a_graph_of_old_operators_is_refused(story: Model) -> None:
    found = onnx.load(story.folder / "model.onnx", load_external_data=False)
    next(each for each in found.opset_import if not each.domain).version = 12
    with pytest.raises(PackageError, match="opset is older than 13"):
        with_single_attention(found.SerializeToString(), story.graph.cache_tensors, "input_ids")


VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.text(max_size=20))


@given(st.lists(st.tuples(st.integers(1, 2**20), VALUES), max_size=12))
def test_messages_come_back_as_they_were_written(fields: list) -> None:
    message = Message()
    for number, value in fields:
        message.add(number, value)
    data = bytes(message)
    assert bytes(Message(data)) == data
    assert Message(data).fields == message.fields


def test_files_come_back_byte_for_byte(story: Model) -> None:
    for path in (story.folder / "model.onnx", PACKAGE / "model.onnx"):
        data = path.read_bytes()
        message = Message(data)
        graph = message.messages(7)[0]
        assert bytes(message) == data
        assert bytes(graph) == message.contents(7)[0]
        assert [node.text(4) for node in graph.messages(1)] == [node.op_type for node in onnx.load_from_string(data).graph.node]


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with contextlib.suppress(PackageError):
        assert len(bytes(Message(data))) <= len(data)


def test_half_a_file_is_refused(story: Model) -> None:
    data = (story.folder / "model.onnx").read_bytes()
    with pytest.raises(PackageError, match="incomplete"):
        Message(data[: len(data) // 2])
