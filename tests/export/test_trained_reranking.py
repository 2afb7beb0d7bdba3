"""A real trained model that is no reranker puts the passage that answers a question first, by the likelihood of the question."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen_export import export
from support.smollm2 import smollm2_checkpoint

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


@pytest.mark.slow
def test_the_passage_that_answers_a_question_is_first_of_ten(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that read GGUF
        checkpoint = smollm2_checkpoint(tmp_path / "checkpoint")
    model = onnx_textgen.load(export(checkpoint, tmp_path / "package").folder, device="cpu")
    passages = list(ANSWERED.values())
    for question, passage in ANSWERED.items():
        ranked = model.rerank(question, passages)
        assert ranked[0].text == passage, question
        assert sorted(each.index for each in ranked) == list(range(len(passages)))
