"""The tab Look inside shows what the model really does, and can go back and choose otherwise."""

import base64
import dataclasses
import io
import re

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import onnx_textgen
from onnx_textgen.diagnostics.inspection import Token
from onnx_textgen_demo.pictures import stage_pictures, strips
from onnx_textgen_demo.pictures.embeddings import embeddings_of
from onnx_textgen_demo.pictures.step_inspection import StepInspector
from onnx_textgen_demo.tabs.look_inside import StageCursor
from support.browser import PHONE, element, elements, open_page, open_tab, set_value, wait_until, walk_to, window
from support.scripted_model import TINY_PACKAGE

SEED = 7
EMBEDDINGS, LAYERS, TRUNCATION = (
    next(place for place, (name, _, _) in enumerate(stage_pictures.STAGES) if name.startswith(begin))
    for begin in ("Embeddings", "Layers", "Truncation")
)


@pytest.fixture(scope="module")
def model():
    return onnx_textgen.load(TINY_PACKAGE)


@pytest.fixture(scope="module")
def story():
    """A package with attention maps."""
    return onnx_textgen.load("story", device="cpu", threads=1)


def inspector_of(model, steps=0, prompt="a cat", **options):
    inspector = StepInspector(model, prompt, model.generator.config({"temperature": 0.9, "top_k": 20, "seed": SEED} | options))
    for _ in range(steps):
        inspector.step()
    return inspector


def test_the_inspected_tokens_are_those_that_generate_draws(model):
    expected = model.generate("a cat", max_new_tokens=6, temperature=0.9, top_k=20, seed=SEED)
    inspector = inspector_of(model)
    while len(inspector.steps) < 6 and inspector.can_step():
        inspector.step()
    assert inspector.chosen_before(len(expected.token_ids)) == list(expected.token_ids)
    assert (expected.finish_reason == "eos") == (len(inspector.steps) == len(expected.token_ids) + 1)


def test_another_temperature_reshapes_the_choice_without_running_the_model(model, monkeypatch):
    inspector = inspector_of(model, 1)
    monkeypatch.setattr("onnx_textgen_demo.pictures.step_inspection.prefill", lambda *_: pytest.fail("the model ran"))
    inspector.choose_again(0, dataclasses.replace(inspector.config, temperature=0, top_k=0))
    assert inspector.steps[0].sampling.chosen.id == int(inspector.steps[0].logits.argmax())
    assert "nothing is drawn" in stage_pictures.draw_picture(inspector, 0)


def test_what_followed_another_token_is_forgotten(model):
    inspector = inspector_of(model, 4)
    drawn = next(number for number, step in enumerate(inspector.steps) if step.sampling.chosen.id != int(step.logits.argmax()))
    inspector.choose_again(drawn, dataclasses.replace(inspector.config, temperature=0, top_k=0))
    assert len(inspector.steps) == drawn + 1
    inspector.step()
    fresh = model.new_context().feed(inspector.ids + inspector.chosen_before(drawn + 1))[-1]
    np.testing.assert_allclose(inspector.steps[-1].logits, fresh, atol=1e-4)


def test_the_random_number_falls_in_the_share_of_the_token_that_was_drawn(model):
    inspector = inspector_of(model, 8, top_k=0, temperature=1.5)
    for number, step in enumerate(inspector.steps):
        line = stage_pictures.shares(inspector, number)
        assert line[0][1] == 0
        assert line[-1][2] == pytest.approx(1)
        found = next(token for token, start, end in line if start <= step.sampling.random_number < end)
        assert found is not None
        assert found.id == step.sampling.chosen.id


def test_a_text_never_becomes_html(model):
    inspector = inspector_of(model, 1, prompt="a <script>alert(1)</script>")
    for stage in range(len(stage_pictures.STAGES)):
        assert "<script" not in stage_pictures.picture(inspector, stage, 0)


def test_the_cursor_goes_forwards_and_back_and_no_further_than_the_text(model):
    cursor = StageCursor(inspector_of(model))
    seen = []
    for place in range(12):
        cursor.move_to(place)
        seen.append((cursor.stage, cursor.number))
    assert seen == [*((stage, 0) for stage in range(10)), (3, 1), (4, 1)]
    cursor.move_to(-1)
    assert (cursor.place, len(cursor.inspector.steps)) == (0, 2)


@pytest.mark.slow
def test_a_person_walks_through_and_moves_the_temperature(chromium, served, model):
    open_page(chromium, served(model))
    open_tab(chromium, "Look inside", "#walk")
    element(chromium, "#walk").click()
    for number, (name, _, _) in enumerate(stage_pictures.STAGES, start=1):
        wait_until(chromium, lambda: f"{number}. {name}" in element(chromium, "#picture").text, name)  # noqa: B023
        element(chromium, "#next").click()
    wait_until(chromium, lambda: "new token 2" in element(chromium, "#picture").text, "the next token")
    elements(chromium, "#stages button")[6].click()
    wait_until(chromium, lambda: "7. Softmax" in element(chromium, "#picture").text, "softmax")
    before = [each.text for each in elements(chromium, "#picture .amount")]
    set_value(chromium, "#walk-sampling input[type=number]", "2")
    wait_until(chromium, lambda: [each.text for each in elements(chromium, "#picture .amount")] != before, "other bars")
    element(chromium, "#back").click()
    wait_until(chromium, lambda: "6. Logits" in element(chromium, "#picture").text, "the stage before")


def test_the_heat_map_has_the_shares_of_the_chosen_head(story):
    inspector = inspector_of(story, 2, prompt="The dog ran")
    inspector.select_head(3, 1)
    weights = story.attentions([*inspector.ids, *inspector.chosen_before(1)]).weights[3, 1]
    shown = stage_pictures.attention_picture(inspector, 1)
    assert "layer 4, head 2" in shown
    grid = shown.partition("legend")[0]
    cells = [float(each) for each in re.findall(r"--strength:([0-9.]+)%", grid)]
    rows, columns = np.tril_indices(len(weights))
    np.testing.assert_allclose(cells, 100 * np.sqrt(weights[rows, columns]), atol=0.06)
    assert f"{stage_pictures.percent(float(weights[-1].max()))}</td>" in shown, "in numbers too"
    inspector.select_head(99, -1)
    assert "layer 6, head 1" in stage_pictures.attention_picture(inspector, 1)


def test_of_a_long_text_the_last_tokens_are_shown_and_rows_still_add_up(story):
    inspector = inspector_of(story, 1, prompt="The dog ran. " * 20)
    shown = stage_pictures.attention_picture(inspector, 0)
    assert "the last 32 tokens are shown" in shown
    assert f"{len(inspector.ids) - 32} before" in shown
    cells = [float(each) / 100 for each in re.findall(r"--strength:([0-9.]+)%", shown.partition("legend")[0])]
    assert len(cells) == sum(range(2, 34))
    assert sum(cell**2 for cell in cells[-33:]) == pytest.approx(1, abs=0.01)


def test_the_model_runs_once_for_all_heads_of_a_text(story, monkeypatch):
    inspector = inspector_of(story, 1)
    stage_pictures.attention_picture(inspector, 0)
    monkeypatch.setattr(type(story), "attentions", lambda *_, **__: pytest.fail("the model ran"))
    inspector.select_head(2, 2)
    assert "layer 3, head 3" in stage_pictures.attention_picture(inspector, 0)


def test_the_embeddings_are_rows_of_the_models_own_table(model):
    found = embeddings_of(model, (5, 2, 5))
    weights = (TINY_PACKAGE / "model.onnx.data").read_bytes()
    assert found.shape == (3, model.manifest.geometry.hidden_size)
    for row in found:
        assert row.tobytes() in weights
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])
    np.testing.assert_array_equal(found, embeddings_of(onnx_textgen.load(TINY_PACKAGE.with_name("standard")), (5, 2, 5)))


@pytest.mark.parametrize("package", ["story", "tiny-transformer", TINY_PACKAGE.with_name("optimum")], ids=str)
def test_every_kind_of_table_is_read(package):
    model = onnx_textgen.load(package)
    size = model.manifest.geometry.vocab_size
    found = embeddings_of(model, tuple(range(min(size, 300))))
    assert found.shape[1] == model.manifest.geometry.hidden_size
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) > 0.9 * len(found), "a row for each token"


def test_the_picture_shows_each_tokens_own_numbers(model):
    inspector = inspector_of(model, prompt="abba")
    found = embeddings_of(model, tuple(inspector.ids))
    shown = stage_pictures.picture(inspector, EMBEDDINGS, 0)
    drawn = re.findall(r'<img class="strip" src="data:image/png;base64,([^"]+)" alt="([^"]+)"', shown)
    assert len(drawn) == len(inspector.ids)
    scale = strips.scale_of(found)
    for (data, told), numbers in zip(drawn, found, strict=True):
        assert told == f"32 numbers from {numbers.min():.3f} to {numbers.max():.3f}"
        cells = np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).reshape(-1, 4).astype(float)
        signs = np.where((cells[:, :3] == strips.ABOVE).all(axis=1), 1, -1)
        np.testing.assert_allclose(signs * cells[:, 3] / 255, np.clip(numbers / scale, -1, 1), atol=0.003)


@given(hnp.arrays(np.float32, st.integers(1, 5000), elements=st.floats(-1e6, 1e6, width=32)))
@example(np.array([1.0] + [1e-42] * 400, np.float32))
def test_any_row_of_numbers_becomes_a_picture_with_a_cell_for_each(numbers):
    told = strips.strip(numbers, strips.scale_of(numbers[None]))
    picture = Image.open(io.BytesIO(base64.b64decode(told.partition("base64,")[2].partition('"')[0])))
    assert 0 <= picture.width * picture.height - numbers.size < picture.width


def test_where_the_graph_does_not_show_its_table_nothing_is_drawn(model, monkeypatch):
    monkeypatch.setattr("onnx_textgen_demo.pictures.embeddings.LOOKUPS", ())
    embeddings_of.cache_clear()
    shown = stage_pictures.picture(inspector_of(model), EMBEDDINGS, 0)
    embeddings_of.cache_clear()
    assert "does not show its table" in shown
    assert "<img" not in shown


def test_every_bar_of_the_cache_is_what_a_run_kept_and_added(model):
    inspector = inspector_of(model, 4)
    shown = stage_pictures.picture(inspector, LAYERS, 3)
    parts = '.*?class="kept" style="width:([^%]+)%.*?class="added" style="width:([^%]+)%'
    bars = re.findall(rf'<th scope="row">(\d+) tokens</th>{parts}', shown)
    longest = inspector.steps[3].run.cached_tokens
    assert len(bars) == 4
    assert shown.count("<span class=") == 2 * len(bars), "and there are no others"
    for (tokens, kept, added), step in zip(bars, inspector.steps, strict=True):
        assert int(tokens) == step.run.cached_tokens
        assert float(added) == pytest.approx(100 * len(step.run.fed) / longest, abs=0.01)
        assert float(kept) + float(added) == pytest.approx(100 * step.run.cached_tokens / longest, abs=0.02)


def test_the_layers_show_the_keys_and_values_that_the_graph_returns():
    model = onnx_textgen.load(TINY_PACKAGE.with_name("standard"))
    inspector = inspector_of(model, 2)
    ids = np.array([[*inspector.ids, *inspector.chosen_before(1)]], np.int64)
    session = ort.InferenceSession(model.graph.path)
    pasts = [each for each in session.get_inputs() if "past" in each.name]
    feeds = {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in pasts}
    feeds |= {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.size)[None]}
    names = [each.name for each in session.get_outputs()]
    inputs = {each.name for each in session.get_inputs()}
    found = dict(zip(names, session.run(names, {each: array for each, array in feeds.items() if each in inputs}), strict=True))
    layers = inspector.steps[1].layers
    assert len(layers) == model.manifest.geometry.layers
    for one in layers:
        for kind, numbers in (("key", one.key), ("value", one.value)):
            np.testing.assert_allclose(numbers, found[f"present.{one.layer}.{kind}"][0, :, -1].ravel(), atol=1e-5)
    shown = stage_pictures.picture(inspector, LAYERS, 1)
    assert shown.count('class="strip"') == 2 * len(layers)
    assert f">{np.linalg.norm(layers[0].key):,.2f}</td>" in shown


@pytest.mark.parametrize("package", ["story", "tiny-transformer", TINY_PACKAGE], ids=str)
def test_every_kind_of_cache_gives_a_key_and_a_value_per_layer(package):
    model = onnx_textgen.load(package)
    geometry = model.manifest.geometry
    layers = inspector_of(model, 1).steps[0].layers
    assert [one.layer for one in layers] == list(range(geometry.layers))
    assert {one.key.size for one in layers} == {geometry.kv_heads * geometry.head_size}


def test_of_a_large_cache_the_layers_numbers_are_left_out(model, monkeypatch):
    monkeypatch.setattr("onnx_textgen_demo.pictures.layer_numbers.MOST_BYTES", 10)
    assert "‖key‖" not in stage_pictures.picture(inspector_of(model, 1), LAYERS, 0)


@pytest.mark.slow
def test_a_person_on_a_phone_reads_what_was_cut_and_by_what(chromium, served, story):
    with window(chromium, *PHONE):
        open_page(chromium, served(story))
        walk_to(chromium, TRUNCATION + 1)
        cut = elements(chromium, "#picture tr.cut")
        assert cut
        for row in cut:
            assert "cut by" in row.find_element(By.CSS_SELECTOR, ".note").text
            for part in row.find_elements(By.CSS_SELECTOR, "code, .amount"):
                assert part.value_of_css_property("text-decoration-line") == "none"
            track, share = (row.find_element(By.CSS_SELECTOR, part).size["width"] for part in (".track", ".track span"))
            assert share == 0 or share >= 0.01 * track
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_only_ways_that_lead_somewhere_can_be_gone(chromium, served, model):
    open_page(chromium, served(model))
    open_tab(chromium, "Look inside", "#walk")
    ways = lambda: [element(chromium, way).is_enabled() for way in ("#back", "#next", "#next-token", "#stages button")]  # noqa: E731
    assert ways() == [False] * 4
    element(chromium, "#walk").click()
    wait_until(chromium, lambda: ways() == [False, True, True, True], "the way from the first picture")
    element(chromium, "#next").click()
    wait_until(chromium, lambda: ways() == [True] * 4, "both ways")


def test_the_way_ends_where_the_text_does(model):
    inspector = inspector_of(model, 1)
    cursor = StageCursor(inspector, place=9)
    assert cursor.can_move(-1)
    assert cursor.can_move(1)
    inspector.steps[-1].sampling = dataclasses.replace(
        inspector.steps[-1].sampling, chosen=Token(model.manifest.eos_ids[0], "</s>")
    )
    assert not cursor.can_move(1)
    assert cursor.can_move(-1)


def test_a_package_without_maps_says_how_to_get_them(model):
    assert "--attention-maps" in stage_pictures.attention_picture(inspector_of(model, 1), 0)


@pytest.mark.slow
def test_a_person_chooses_layer_and_head_by_keyboard_on_a_phone(chromium, served, story):
    with window(chromium, *PHONE):
        open_page(chromium, served(story))
        open_tab(chromium, "Look inside", "#walk")
        assert not elements(chromium, "#layer")
        element(chromium, "#walk").click()
        wait_until(chromium, lambda: "1. Text" in element(chromium, "#picture").text, "the first picture")
        elements(chromium, "#stages button")[stage_pictures.ATTENTION].click()
        wait_until(chromium, lambda: "In layer 1, head 1 it looks" in element(chromium, "#picture").text, "the heat map")
        cells = element(chromium, "#picture .heat").get_attribute("innerHTML")
        element(chromium, "#layer input[type=range]").send_keys(Keys.ARROW_RIGHT)
        wait_until(chromium, lambda: "In layer 2, head 1 it looks" in element(chromium, "#picture").text, "another layer")
        element(chromium, "#head input[type=range]").send_keys(Keys.END)
        wait_until(chromium, lambda: "In layer 2, head 5 it looks" in element(chromium, "#picture").text, "another head")
        assert element(chromium, "#picture .heat").get_attribute("innerHTML") != cells
        element(chromium, "#picture summary").click()
        assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390
        element(chromium, "#next").click()
        wait_until(chromium, lambda: "6. Logits" in element(chromium, "#picture").text, "the next stage")
        wait_until(chromium, lambda: not elements(chromium, "#layer"), "no sliders there")
