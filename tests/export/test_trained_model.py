"""A real trained model keeps its quality: fp32 writes transformers' tokens, int8 and int4 hold their budgets in their sizes.

The float32 package is made once, from the GGUF file and with an adapter kept apart, which leaves the model's own graph as it is.
`python benchmarks/beside_llama_cpp.py FILE.gguf --record smollm2_by_llama_cpp.json` recorded what llama.cpp does with that file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

import onnx_textgen
from onnx_textgen.backends.onnxruntime_session import open_session
from onnx_textgen.inference.decoder import Decoder
from onnx_textgen.inference.prefill import prefill
from onnx_textgen.package.manifest import GRAPH, INT8_CACHE_GRAPH, weights_files
from onnx_textgen.package.reading import read_manifest
from onnx_textgen_export import Exported, export
from onnx_textgen_export.calibration.attempts import BUDGETS, Budget
from onnx_textgen_export.calibration.texts import TEXTS, WINDOW
from onnx_textgen_export.proof.measures import log_softmax
from onnx_textgen_export.tracing.opening import Opened, open_source
from support.costs import by_cost
from support.plain_onnxruntime import mean_divergence, open_plain, plain_logits
from support.processor import HAS_VNNI
from support.smollm2 import smollm2_checkpoint, smollm2_file

PROMPTS = [
    "The history of the town begins in the year",
    "Photosynthesis is the process by which",
    "Q: How many legs does a spider have?\nA:",
    "Dear Ms. Alvarez,\n\nThank you for",
    "Once upon a time, in a village by the sea,",
    "1. Preheat the oven to 180 °C.\n2.",
    "def fibonacci(n):\n    ",
    "SELECT name FROM users WHERE",
    "#include <stdio.h>\n\nint main(",
    "<html>\n  <body>\n    <h1>",
    '{"name": "Ada", "born": 1815, "',
    "for i in range(10):\n\tprint(",
    '$ git commit -m "',
    "La capitale de la France est",
    "Der schnellste Weg nach Hamburg ist",
    "El perro y el gato son",
    "Il pleut sur la ville et",
    "今日は天気が",
    "Столица России —",
    "القاهرة هي عاصمة",
    "Zahlen: 1, 2, 3, 5, 8, 13,",
    "3.14159 26535 89793",
    "12 * 12 = 144, 13 * 13 =",
    "2026-11-22T09:30:00Z",
    "🙂🎉 What a day! ",
    "👩‍👩‍👧‍👦 means",
    "  \n\n\t  ",
    "AAAAAAAAAAAAAAAA",
]
"""With the chat, and documents of 2,000 tokens, 31 of them."""
DOCUMENT = 2000
EDIT = (
    "Correct the spelling mistakes in this text, and write it out again:\n\n"
    "The old lighthouse at Carrow Point was built in 1854, after three ships had been lost on the reef in a single winter. "
    "Its lamp burned whale oil until 1872, when the keeper, Thomas Hale, persuaded the harbour board to pay for a new lens "
    "from Paris. The lens could be seen from twenty miles away, and no ship was lost on the reef for the next thirty yeers."
)
ANSWERED = {
    "When was the lighthouse at Carrow Point built?": (
        "The lighthouse at Carrow Point was completed in 1854, after three ships were lost on the reef."
    ),
    "how to make bread": (
        "Mix flour, water, yeast and salt, knead the dough, let it rise for an hour and bake it at 230 degrees until "
        "the crust is brown."
    ),
    "What do giant pandas eat?": "The giant panda lives in the mountains of central China, and feeds almost only on bamboo.",
    "capital of France": "Paris lies on the Seine and has been the seat of the French government for centuries.",
    "Why is the sky blue?": (
        "Air molecules scatter short wavelengths of sunlight more strongly than long ones, so blue light reaches us "
        "from all directions."
    ),
    "python sort a list in reverse order": (
        "Call sorted(items, reverse=True), or items.sort(reverse=True) to change the list itself."
    ),
    "symptoms of the flu": "Influenza begins suddenly with fever, a dry cough, a headache, aching muscles and tiredness.",
    "who wrote Hamlet": "The tragedy of the Prince of Denmark was written by William Shakespeare around 1600.",
    "How far away is the Moon?": (
        "Light takes 1.3 seconds to travel the 384,400 kilometres between the Earth and its satellite, the Moon."
    ),
    "best time to plant tomatoes": (
        "Sow the seeds indoors in March, and set the young tomato plants out once the nights are free of frost, in late May."
    ),
}
"""Questions, and a passage for each."""
CLOSE = 0.5
"""Nats between the two likeliest tokens, below which llama.cpp's rounding of activations may exchange them."""
LAST = 192
"""Tokens that are compared behind a long text."""
NEW = 24
"""Tokens that are written after each prompt."""
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read GGUF
        return smollm2_checkpoint(tmp_path_factory.mktemp("smollm2") / "checkpoint")


@pytest.fixture(scope="module")
def pirate(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, peft.PeftModel]:
    """An adapter that was trained on one sentence, and PEFT's model with it."""
    base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    learnt = tokenizer("The capital of France is a ship, said the pirate, and hoisted the sails.", return_tensors="pt").input_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT 0.21 with transformers 5.23
        trained = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=8, lora_alpha=16))
    optimizer = torch.optim.AdamW([each for each in trained.parameters() if each.requires_grad], lr=2e-3)
    for _ in range(12):
        trained(input_ids=learnt, labels=learnt).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("pirate") / "pirate"
    trained.eval().save_pretrained(folder)
    return folder, trained


@pytest.fixture(scope="module")
def fp32(pirate: tuple[Path, peft.PeftModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float32 package of the GGUF file."""
    return export(smollm2_file(), tmp_path_factory.mktemp("fp32") / "out", precision="fp32", adapters={"pirate": pirate[0]}).folder


def sizes(folder: Path) -> int:
    """Bytes of graph and weights."""
    return sum((folder / name).stat().st_size for name in (GRAPH, *weights_files(read_manifest(folder))))


def greedy(reference: torch.nn.Module, ids: Sequence[int], new_ids: Sequence[int]) -> list[int]:
    """The likeliest token after the prompt and after each new one: if those are the new ones, greedy search writes them."""
    with torch.no_grad():
        logits = reference(torch.tensor([[*ids, *new_ids]]), logits_to_keep=len(new_ids) + 1).logits
    likeliest: list[int] = logits[0].argmax(-1).tolist()
    return likeliest


def documents(shared: Path, tokenizer: transformers.PreTrainedTokenizerBase) -> list[str]:
    """Two texts of 2,000 tokens: an encyclopaedia and a play."""
    corpora = (shared / "corpora" / name for name in ("wikitext2_valid.txt", "tinyshakespeare.txt"))
    return [tokenizer.decode(tokenizer(path.read_text(encoding="utf-8")[:12_000]).input_ids[:DOCUMENT]) for path in corpora]


@pytest.mark.slow
def test_fp32_writes_the_tokens_of_transformers_and_fills_its_template(checkpoint: Path, fp32: Path, shared: Path) -> None:
    model = onnx_textgen.load(fp32, device="cpu")
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    chat = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    for prompt in [*PROMPTS, chat, *documents(shared, tokenizer)]:
        ids = tokenizer(prompt).input_ids
        assert model.encode(prompt) == ids
        ours = model.generate(ids, max_new_tokens=NEW, temperature=0)
        theirs = greedy(reference, ids, ours.token_ids)
        ends = [tokenizer.eos_token_id] if len(ours.token_ids) < NEW else []  # which ours leaves out
        assert [*ours.token_ids, *ends] == theirs[: len(ours.token_ids) + len(ends)], prompt
        assert ours.finish_reason == ("eos" if ends else "length")


@pytest.fixture(scope="module")
def opened() -> Opened:
    """The GGUF file, read once."""
    return open_source(smollm2_file())


@pytest.mark.slow
def test_its_gguf_file_opens_as_the_checkpoint_that_transformers_makes_of_it(
    opened: Opened, checkpoint: Path, shared: Path
) -> None:
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(opened.weights.load(name), tensor), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert opened.assets.tokenizer is not None
    for prompt in [*PROMPTS, *documents(shared, tokenizer)]:
        assert opened.assets.tokenizer.encode(prompt).ids == tokenizer(prompt).input_ids
    assert opened.assets.chat_template == tokenizer.chat_template
    assert opened.assets.eos_ids == (tokenizer.eos_token_id,)


@dataclasses.dataclass
class Packages:
    """Packages of the trained model, each made when it is first asked for."""

    checkpoint: Path
    work: Path
    known: dict[str, tuple[Exported, list[str]]] = dataclasses.field(default_factory=dict)
    """And what its export reported."""

    def get(self, form: str) -> tuple[Exported, list[str]]:
        """`int8`, `int4`, or `4 bits`: of those exactly, uncalibrated."""
        if form not in self.known:
            said: list[str] = []
            how = {
                "int8": {"precision": "int8", "int8_cache": True},
                "int4": {"precision": "int4"},
                "4 bits": {"precision": "int4", "budget": Budget(strict_bits=True, calibrates=False)},
            }
            self.known[form] = export(self.checkpoint, self.work / form.replace(" ", "-"), report=said.append, **how[form]), said
        return self.known[form]


@pytest.fixture(scope="module")
def packages(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return Packages(checkpoint, tmp_path_factory.mktemp("packages"))


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "most"), [("int8", 144), ("int4", 105)])
def test_a_quantised_package_holds_its_budget(packages: Packages, precision: str, most: float) -> None:
    made, said = packages.get(precision)
    rounding = made.manifest.certificate["rounding"]
    assert set(rounding) == {"prose", "code", "chat", "languages", "all"}
    assert rounding["all"]["tokens"] > 2500
    assert rounding["all"]["kl_mean"] <= BUDGETS[precision]
    assert rounding["all"]["kl_p99"] >= rounding["all"]["kl_mean"]
    assert made.manifest.summary["kl_divergence"] == max(each["kl_mean"] for each in rounding.values())
    assert made.manifest.certificate["same_weights"], "the graph is proved right with the same rounded weights"
    assert sizes(made.folder) <= most * MEGABYTE
    assert any(line.startswith("rounding: ") and "the budget of" in line for line in said)
    if precision == "int4":  # the file's own blocks, and an output layer of 4 bits
        assert list(made.manifest.quantization["as_stored"]) == ["4 bits in blocks of 32 with offsets"]
        assert any(line.startswith("estimate: ") for line in said)
    model = onnx_textgen.load(made.folder, device="cpu")
    answer = model.generate(PROMPTS[0], max_new_tokens=16, temperature=0)
    assert np.isfinite(model.score(PROMPTS[0] + answer.text).perplexity)


def measured_texts(tokenizer: transformers.PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Token ids of the exporter's texts by their kind, read here without its code."""
    talks = json.loads((TEXTS / "chats.json").read_text(encoding="utf-8"))["measured"]
    chats = [tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
    files = {"prose": "probe_text.txt", "code": "code.txt", "languages": "languages.txt"}
    texts = {kind: (TEXTS / name).read_text(encoding="utf-8") for kind, name in files.items()} | {"chat": "\n".join(chats)}
    return {kind: tokenizer(text).input_ids for kind, text in texts.items()}


@pytest.mark.slow
def test_plain_onnx_runtime_finds_the_divergence_that_the_certificate_names(packages: Packages, checkpoint: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    records = {form: packages.get(form)[0] for form in ("int8", "int4")}
    sessions = {form: open_plain(made.folder / GRAPH) for form, made in records.items()}
    texts = measured_texts(transformers.AutoTokenizer.from_pretrained(checkpoint))
    for kind, ids in ((kind, texts[kind]) for kind in ("chat", "languages")):  # the best and the worst
        printed = {form: made.manifest.certificate["rounding"][kind] for form, made in records.items()}
        found: dict[str, list[float]] = {form: [] for form in records}
        for start in range(0, printed["int8"]["tokens"], WINDOW):
            window = ids[start : start + WINDOW]
            with torch.no_grad():
                want = reference(torch.tensor([window])).logits[0].numpy()
            for form, session in sessions.items():
                found[form].append(mean_divergence(plain_logits(session, window), want))
        for form, each in found.items():
            assert np.mean(each) == pytest.approx(printed[form]["kl_mean"], rel=0.25), (form, kind)


@pytest.mark.rare
def test_exactly_four_bits_are_kept_with_a_warning(packages: Packages) -> None:
    made, said = packages.get("4 bits")
    assert "mix" not in made.manifest.quantization
    assert any("above the budget of 0.03, as --strict-bits asks" in line for line in said)
    assert made.manifest.summary["kl_divergence"] > BUDGETS["int4"]


@pytest.mark.slow
@pytest.mark.parametrize("behind", by_cost([2000], rare=[6000]))
def test_a_cache_of_8_bits_keeps_the_predictions_far_into_a_text(packages: Packages, shared: Path, behind: int) -> None:
    made, _ = packages.get("int8")
    text = (shared / "corpora" / "tinyshakespeare.txt").read_text(encoding="utf-8")[: 4 * (behind + LAST)]
    ids = onnx_textgen.load(made.folder, device="cpu").encode(text)[: behind + LAST]
    assert len(ids) == behind + LAST
    found = []
    for name in (GRAPH, INT8_CACHE_GRAPH):
        decoder = Decoder(open_session(made.folder / name, device="cpu"), made.manifest.geometry)
        prefill(decoder, ids[:behind])
        found.append(log_softmax(np.concatenate([decoder.feed([token]) for token in ids[behind:]])))
    own, small = found
    assert (np.exp(own) * (own - small)).sum(axis=1).mean() < 0.01
    assert (own.argmax(axis=1) == small.argmax(axis=1)).mean() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_prompt_lookup_is_mostly_right_in_an_edit_and_changes_no_text(packages: Packages, form: str) -> None:
    model = onnx_textgen.load(packages.get(form)[0].folder, device="cpu", prefix_cache=0)
    edit = model.encode_chat([{"role": "user", "content": EDIT}])
    for prompt, least in ((edit, 0.5), (PROMPTS[0], 0.0)):
        plain = model.generate(prompt, max_new_tokens=64, temperature=0)
        guessed = model.generate(prompt, max_new_tokens=64, temperature=0, prompt_lookup_num_tokens=8)
        assert guessed.token_ids == plain.token_ids
        assert guessed.stats.drafted_tokens > 0 or (form == "int4" and not HAS_VNNI)  # it computes tokens in pairs
        assert guessed.stats.accepted_tokens >= least * guessed.stats.drafted_tokens


@pytest.mark.slow
def test_a_trained_adapter_writes_the_tokens_of_peft_and_the_model_its_own(
    pirate: tuple[Path, peft.PeftModel], fp32: Path, checkpoint: Path
) -> None:
    trained, model = pirate[1], onnx_textgen.load(fp32, device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    for prompt in ("The capital of France is", *PROMPTS[:3]):
        ids = tokenizer(prompt).input_ids
        for adapter in ("pirate", None):
            ours = model.generate(ids, max_new_tokens=NEW, temperature=0, adapter=adapter).token_ids
            with contextlib.nullcontext() if adapter else trained.disable_adapter():
                assert list(ours) == greedy(trained, ids, ours)[: len(ours)], (prompt, adapter)
    text = model.generate("The capital of France is", max_new_tokens=8, temperature=0, adapter="pirate").text
    assert "ship, said the pirate" in text


@pytest.mark.slow
def test_the_passage_that_answers_a_question_is_first_of_ten(fp32: Path) -> None:
    """By the likelihood of the question, as this model is no reranker."""
    model, passages = onnx_textgen.load(fp32, device="cpu"), list(ANSWERED.values())
    for question, passage in ANSWERED.items():
        ranked = model.rerank(question, passages)
        assert ranked[0].text == passage, question
        assert sorted(each.index for each in ranked) == list(range(len(passages)))


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("smollm2_by_llama_cpp.json").read_text(encoding="utf-8"))
    assert hashlib.sha256(smollm2_file().read_bytes()).hexdigest() == found["sha256"]
    return found


def test_texts_have_llama_cpps_token_ids(opened: Opened, recorded: dict[str, Any]) -> None:
    tokenizer = opened.assets.tokenizer
    assert tokenizer is not None
    for each in recorded["texts"]:
        assert tokenizer.encode(each["text"], add_special_tokens=False).ids == each["ids"], each["text"]


@pytest.mark.slow
def test_greedy_texts_leave_llama_cpps_only_where_two_tokens_were_close(recorded: dict[str, Any], fp32: Path) -> None:
    model = onnx_textgen.load(fp32, device="cpu")
    leads = np.concatenate([each["ahead"] for each in recorded["greedy"]])
    assert len(recorded["greedy"]) == 20
    assert (leads > CLOSE).mean() > 0.6, "most places leave no room"
    for each in recorded["greedy"]:
        ours = model.generate(each["prompt_ids"], max_new_tokens=len(each["new_ids"]), temperature=0).token_ids
        places = zip(ours, each["new_ids"], each["ahead"], strict=False)
        lead = next((lead for own, other, lead in places if own != other), 0.0)
        assert lead < CLOSE, model.tokenizer.decode(each["prompt_ids"])
