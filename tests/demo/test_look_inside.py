"""The walk through the pipeline shows what the model really does, and can go back and choose otherwise."""

import dataclasses

import numpy as np
import pytest

import onnx_textgen
from demo.browser import element, elements, open_page, open_tab, set_value, wait_until
from demo.scripted_model import TINY_PACKAGE
from onnx_textgen_demo import pictures
from onnx_textgen_demo.tabs.look_inside import Visit
from onnx_textgen_demo.walk import Walk

SEED = 7


@pytest.fixture(scope="module")
def model():
    return onnx_textgen.load(TINY_PACKAGE)


def walk_of(model, steps=0, prompt="a cat", **options):
    walk = Walk(model, prompt, model.config({"temperature": 0.9, "top_k": 20, "seed": SEED} | options))
    for _ in range(steps):
        walk.step()
    return walk


def test_the_tokens_of_a_walk_are_those_that_generate_draws(model):
    expected = model.generate("a cat", max_new_tokens=6, temperature=0.9, top_k=20, seed=SEED)
    walk = walk_of(model)
    while len(walk.looks) < 6 and walk.can_step():
        walk.step()
    assert walk.chosen_before(len(expected.token_ids)) == list(expected.token_ids)
    assert (expected.finish_reason == "eos") == (len(walk.looks) == len(expected.token_ids) + 1)


def test_another_temperature_reshapes_the_choice_without_running_the_model(model, monkeypatch):
    walk = walk_of(model, 1)
    monkeypatch.setattr("onnx_textgen_demo.walk.prefill", lambda *_: pytest.fail("the model ran"))
    walk.choose_again(0, dataclasses.replace(walk.config, temperature=0, top_k=0))
    assert walk.looks[0].weighing.chosen.id == int(walk.looks[0].logits.argmax())
    assert "nothing is drawn" in pictures.draw_picture(walk, 0)


def test_what_followed_another_token_is_forgotten(model):
    walk = walk_of(model, 4)
    drawn = next(number for number, look in enumerate(walk.looks) if look.weighing.chosen.id != int(look.logits.argmax()))
    walk.choose_again(drawn, dataclasses.replace(walk.config, temperature=0, top_k=0))
    assert len(walk.looks) == drawn + 1
    walk.step()
    fresh = model.new_context().feed(walk.ids + walk.chosen_before(drawn + 1))[-1]
    np.testing.assert_allclose(walk.looks[-1].logits, fresh, atol=1e-4)


def test_the_random_number_falls_in_the_share_of_the_token_that_was_drawn(model):
    walk = walk_of(model, 8, top_k=0, temperature=1.5)
    for number, look in enumerate(walk.looks):
        line = pictures.shares(walk, number)
        assert line[0][1] == 0
        assert line[-1][2] == pytest.approx(1)
        found = next(token for token, start, end in line if start <= look.weighing.random_number < end)
        assert found is not None
        assert found.id == look.weighing.chosen.id


def test_a_text_never_becomes_html(model):
    walk = walk_of(model, 1, prompt="a <script>alert(1)</script>")
    for stage in range(len(pictures.STAGES)):
        assert "<script" not in pictures.picture(walk, stage, 0)


def test_a_visit_goes_forwards_and_back_and_no_further_than_the_text(model):
    visit = Visit(walk_of(model))
    seen = []
    for place in range(12):
        visit.go(place)
        seen.append((visit.stage, visit.number))
    assert seen == [*((stage, 0) for stage in range(9)), (3, 1), (4, 1), (5, 1)]
    visit.go(-1)
    assert (visit.place, len(visit.walk.looks)) == (0, 2)


def test_a_person_walks_through_and_moves_the_temperature(chromium, served, model):
    open_page(chromium, served(model))
    open_tab(chromium, "Look inside")
    wait_until(chromium, lambda: element(chromium, "#walk").is_displayed(), "the tab")
    element(chromium, "#walk").click()
    for number, (name, _, _) in enumerate(pictures.STAGES, start=1):
        wait_until(chromium, lambda: f"{number}. {name}" in element(chromium, "#picture").text, name)  # noqa: B023
        element(chromium, "#next").click()
    wait_until(chromium, lambda: "new token 2" in element(chromium, "#picture").text, "the next token")
    elements(chromium, "#stages button")[5].click()
    wait_until(chromium, lambda: "6. Softmax" in element(chromium, "#picture").text, "softmax")
    before = [each.text for each in elements(chromium, "#picture .amount")]
    set_value(chromium, "#walk-sampling input[type=number]", "2")
    wait_until(chromium, lambda: [each.text for each in elements(chromium, "#picture .amount")] != before, "other bars")
    element(chromium, "#back").click()
    wait_until(chromium, lambda: "5. Logits" in element(chromium, "#picture").text, "the stage before")
