"""The settings of embedding models and rerankers in a manifest, and the prompts among them."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_textgen.errors import OptionError, PackageError
from onnx_textgen.package.manifest import Manifest, manifest_from_json, manifest_to_json
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.package.retrieval import EmbeddingSettings, RerankingSettings, chosen_prompt, messages_of

PROMPTS = st.dictionaries(st.text(), st.text(), max_size=3)
EMBEDDING = st.builds(
    EmbeddingSettings,
    pooling=st.sampled_from(["mean", "weightedmean", "last"]),
    normalize=st.booleans(),
    prompts=PROMPTS,
    default_prompt_name=st.none() | st.text(),
    dimensions=st.none() | st.integers(1, 4096),
    similarity=st.none() | st.text(),
    refused=st.text(),
)
RERANKING = st.builds(
    RerankingSettings,
    true_id=st.integers(0, 9),
    false_id=st.none() | st.integers(0, 9),
    activation=st.sampled_from(["sigmoid", "identity"]),
    add_generation_prompt=st.booleans(),
    has_parts=st.booleans(),
    prompts=PROMPTS,
    default_prompt_name=st.none() | st.text(),
    refused=st.text(),
)


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(Path(__file__).parents[2] / "packages" / "ort")


@given(st.none() | EMBEDDING, st.none() | RERANKING)
def test_a_manifest_keeps_them_and_has_no_entry_for_none(
    manifest: Manifest, embedding: EmbeddingSettings | None, reranking: RerankingSettings | None
) -> None:
    changed = dataclasses.replace(manifest, embedding=embedding, reranking=reranking)
    written = json.loads(manifest_to_json(changed))
    assert ("embedding" in written, "reranking" in written) == (embedding is not None, reranking is not None)
    assert manifest_from_json(written) == changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value.update(embedding=[]), "embedding should be a JSON object or null, found list"),
        (
            lambda value: value.update(embedding={"pooling": "median"}),
            "embedding.pooling should be 'mean' or 'weightedmean' or 'last'",
        ),
        (lambda value: value.update(embedding={"pool": "mean"}), "embedding has the unknown key 'pool'"),
        (
            lambda value: value.update(embedding={"dimensions": {}}),
            "embedding.dimensions should be a whole number or null, found dict",
        ),
        (lambda value: value.update(embedding={"prompts": {"query": 1}}), r"embedding.prompts\['query'\] should be a string"),
        (lambda value: value.update(reranking={}), "reranking lacks the key 'true_id'"),
        (lambda value: value.update(reranking={"true_id": 1, "false_id": -1}), "reranking has the token id -1, outside"),
        (lambda value: value.update(bos_id={}), "bos_id should be a whole number or null, found dict"),
    ],
)
def test_what_is_no_such_settings_is_refused_in_one_line(manifest: Manifest, change: Callable[[dict], object], said: str) -> None:
    value = json.loads(manifest_to_json(manifest))
    del value["sha256"]
    change(value)
    with pytest.raises(PackageError, match=said):
        manifest_from_json(value)


@given(EMBEDDING | RERANKING)
def test_a_prompt_is_named_or_given_or_the_default_one(settings: EmbeddingSettings | RerankingSettings) -> None:
    for name, text in settings.prompts.items():
        assert chosen_prompt(settings, None, name) == text
    assert chosen_prompt(settings, "Find: ", None) == "Find: "
    assert chosen_prompt(settings, "", None) == ""
    default = settings.default_prompt_name
    assert chosen_prompt(settings, None, None) == (settings.prompts.get(default) if default else None)


@pytest.mark.parametrize(
    ("prompt", "name", "said"),
    [
        ("a", "query", "prompt and prompt_name both say what is written before a text"),
        (None, "passage", "there is no prompt 'passage'; choose one of: query"),
        (None, 3, "there is no prompt 3; choose one of: query"),
        (3, None, "prompt should be a text, found 3"),
    ],
)
def test_a_prompt_that_cannot_take_effect_is_refused(prompt: object, name: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        chosen_prompt(EmbeddingSettings(prompts={"query": "Q: "}), prompt, name)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="this package has none; give the text itself as prompt"):
        chosen_prompt(EmbeddingSettings(), None, "query")


@pytest.mark.parametrize("has_parts", [False, True])
def test_the_instruction_is_a_message_of_its_own(has_parts: bool) -> None:
    settings = RerankingSettings(true_id=1, has_parts=has_parts)
    messages = messages_of(settings, "a query", "a document", "Compare.")
    contents = [each["content"] for each in messages]
    assert [each["role"] for each in messages] == ["system", "query", "document"]
    wanted = ["Compare.", "a query", "a document"]
    assert contents == ([[{"type": "text", "text": text}] for text in wanted] if has_parts else wanted)
    assert [each["role"] for each in messages_of(settings, "a", "b")] == ["query", "document"]
