"""Chats and prompts with pictures, by the embedded model that reads numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

import onnx_textgen
from onnx_textgen import ImageError, Model, PromptError
from onnx_textgen.images.image_rows import without_images
from onnx_textgen.images.pictures import as_png
from onnx_textgen.package.integrity import package_bytes, package_digest
from onnx_textgen.package.manifest import FileRecord

QUESTION = "What number is this?"
Pixels = Any


def picture(number: str, seed: int = 0, size: int = 64) -> Pixels:
    """A number in another size and font size than those of training, dark on light."""
    draw = np.random.default_rng(seed)
    light, dark = draw.integers(170, 256, 3), draw.integers(0, 70, 3)
    image = Image.new("RGB", (size, size), tuple(map(int, light)))
    font = ImageFont.load_default(size * 28 // 64)
    left, top, right, bottom = font.getbbox(number)
    place = ((size - right + left) / 2 - left, (size - bottom + top) / 2 - top)
    ImageDraw.Draw(image).text(place, number, fill=tuple(map(int, dark)), font=font)
    return np.asarray(image)


def about(image: object, question: str = QUESTION) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]


def read(model: Model, image: object, question: str = QUESTION) -> str:
    return model.chat(about(image, question), temperature=0, max_new_tokens=6).text


def test_it_reads_numbers(digits: Model) -> None:
    numbers = [str(number) for number in np.random.default_rng(5).integers(0, 1000, 60)]
    right = [read(digits, picture(number, seed)) == number for seed, number in enumerate(numbers)]
    assert sum(right) >= 57


def test_it_answers_other_questions(digits: Model) -> None:
    asked = {"How many digits are there?": "3", "What is the first digit?": "4", "What is the last digit?": "7"}
    assert {question: read(digits, picture("407"), question) for question in asked} == asked


def test_a_picture_of_any_size_and_form(digits: Model, tmp_path: Path) -> None:
    large = picture("58", size=900)
    Image.fromarray(large).save(tmp_path / "a.jpg")
    for form in (large, as_png(large), tmp_path / "a.jpg", str(tmp_path / "a.jpg"), Image.fromarray(large)):
        assert read(digits, form) == "58"


def test_pictures_of_a_batch_do_not_mix(digits: Model) -> None:
    numbers = ["12", "907", "5", "66"]
    prompts: list[list[int] | str] = [digits.encode_chat(about(picture(number))) for number in numbers]
    texts = digits.generate([*prompts, "<|user|>Hello<|end|><|assistant|>"], temperature=0, max_new_tokens=6)
    assert [each.text for each in texts[:4]] == numbers
    alone = digits.generate("<|user|>Hello<|end|><|assistant|>", temperature=0, max_new_tokens=6)
    assert texts[4].token_ids == alone.token_ids


def test_two_pictures_in_one_chat(digits: Model) -> None:
    first, second = picture("31"), picture("8")
    history = [*about(first), {"role": "assistant", "content": "31"}]
    alone = digits.generate(digits.encode_chat([*history, *about(second)]), temperature=0, max_new_tokens=6)
    ids = digits.encode_chat([*history, *about(second)])
    assert sum(each < 0 for each in ids) == 2 * 64
    again = digits.chat([*history, *about(second)], temperature=0, max_new_tokens=6)
    assert again.text == alone.text


def test_the_same_picture_is_found_in_the_cache(digits: Model) -> None:
    model = onnx_textgen.load("digits", threads=1, device="cpu")
    first = model.chat(about(picture("77")), temperature=0, max_new_tokens=6)
    other = model.chat(about(picture("78")), temperature=0, max_new_tokens=6)
    again = model.chat(about(picture("77"), "What is the last digit?"), temperature=0, max_new_tokens=6)
    assert first.generation.stats.reused_tokens == 0
    assert other.generation.stats.reused_tokens < 8  # the beginning of the template alone
    assert again.generation.stats.reused_tokens >= 64


def test_equal_prompts_are_equal_in_every_process(digits: Model) -> None:
    assert digits.encode("x", images=[picture("3")]) == onnx_textgen.load("digits").encode("x", images=[picture("3")])


def test_a_session_with_pictures_is_saved_and_continued(digits: Model, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(as_png(picture("42")))
    session = digits.session()
    session.append(about(path))
    assert session.chat(temperature=0, max_new_tokens=6).text == "42"
    session.save(tmp_path / "talk.session")
    path.unlink()
    loaded = onnx_textgen.load("digits", threads=1, device="cpu").load_session(tmp_path / "talk.session")
    assert loaded.token_ids == session.token_ids
    for each in (session, loaded):
        each.append(about(picture("9")))
    answers = [each.chat(temperature=0, max_new_tokens=6).text for each in (session, loaded)]
    assert answers[0] == answers[1]
    assert "42" in session.text and "Session" in repr(loaded)


def test_a_placeholder_in_a_message_is_text(digits: Model) -> None:
    ids = digits.encode_chat([{"role": "user", "content": "what does <image> mean?"}])
    assert min(ids) >= 0
    assert digits.generate(ids, max_new_tokens=3, temperature=0, ignore_eos=True).token_ids
    with_both = digits.encode_chat(about(picture("1"), "what does <image> mean?"))
    assert sum(each < 0 for each in with_both) == 64


def test_prompts_with_pictures(digits: Model) -> None:
    prompt = f"<|user|><image>{QUESTION}<|end|><|assistant|>"
    ids = digits.encode(prompt, images=[picture("250")])
    assert ids == digits.encode_chat(about(picture("250")))
    assert digits.generate(ids, temperature=0, max_new_tokens=6).text == "250"
    texts = [chunk.text for chunk in digits.stream(ids, temperature=0, max_new_tokens=6)]
    assert "".join(texts) == "250"
    beams = digits.generate(ids, num_beams=3, max_new_tokens=6)
    assert beams.text == "250"
    drafted = digits.generate(ids, temperature=0, max_new_tokens=6, prompt_lookup_num_tokens=3)
    assert drafted.text == "250"
    assert digits.generate(ids, temperature=0, max_new_tokens=6, regex="[0-9]{2}").text == "25"
    with pytest.raises(ImageError, match="more places"):
        digits.encode("<image><image>", images=[picture("1")])


def test_a_tool_result_may_have_a_picture(digits: Model) -> None:
    messages = [*about(picture("4")), {"role": "assistant", "content": "4"}, *about(picture("6"), "And this?")]
    assert sum(each < 0 for each in digits.encode_chat(messages)) == 128


def test_models_of_text_say_so() -> None:
    model = onnx_textgen.load(threads=1, device="cpu")
    assert not model.manifest.images is not None
    with pytest.raises(ImageError, match="reads text alone"):
        model.encode("x", images=[picture("1")])


def test_what_is_no_picture_gets_one_line(digits: Model) -> None:
    for wrong in ("missing.png", b"abc", {"type": "x"}):
        with pytest.raises(ImageError) as error:
            digits.chat(about(wrong))
        assert "\n" not in str(error.value)


def test_more_pictures_than_the_context_holds_are_refused_before_they_are_read(
    digits: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits.generator.opened.images, "read", lambda *_: pytest.fail("a picture was read"))
    many = [{"role": "user", "content": [{"type": "image", "image": picture("1")}] * 16}]
    with pytest.raises(PromptError, match="16 pictures take 1,024 tokens"):
        digits.chat(many)
    with pytest.raises(PromptError, match="Leave some out"):
        digits.encode("x", images=[picture("1")] * 16)


def test_scores_are_of_text(digits: Model) -> None:
    with pytest.raises(ImageError, match="scores are of text alone"):
        digits.score(digits.encode("x", images=[picture("1")]))


def test_ids_without_pictures_decode(digits: Model) -> None:
    ids = digits.encode("<image>What?", images=[picture("1")])
    assert digits.tokenizer.decode(without_images(ids)) == "What?"


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


def with_template(digits: Model, template: str) -> Model:
    opened = digits.generator.opened
    return Model(digits.folder, digits.manifest, digits.graph, chat_template=template, images=opened.images)


def rows_in(model: Model, ids: list[int], *pictures: Pixels) -> list[int]:
    """Which pictures the ids have, in their order."""
    reader = model.generator.opened.images
    assert reader is not None
    first = {reader.read(each).ids[0]: place for place, each in enumerate(pictures)}
    return [first[each] for each in ids if each in first]


def test_pictures_follow_their_messages_into_another_order(digits: Model) -> None:
    model, first, second = with_template(digits, STRICT), picture("1"), picture("2")
    messages = [*about(first, "first"), {**about(second, "second")[0], "role": "system"}]
    ids = model.encode_chat(messages)
    text = model.tokenizer.decode(without_images(ids))
    assert rows_in(model, ids, first, second) == ([1, 0] if text.index("second") < text.index("first") else [0, 1])


def test_a_template_that_takes_no_parts_gets_the_places_as_text(digits: Model) -> None:
    model, first, second = with_template(digits, PLAIN), picture("1"), picture("2")
    ids = model.encode_chat([*about(first), {"role": "assistant", "content": "1"}, *about(second)])
    assert rows_in(model, ids, first, second) == [0, 1]
    assert sum(each < 0 for each in ids) == 128


def test_what_looks_like_a_mark_is_text(digits: Model) -> None:
    model = with_template(digits, PLAIN)
    assert sum(each < 0 for each in model.encode_chat(about(picture("1"), "\uf8ff0\uf8ff <image>"))) == 64


def test_a_picture_that_is_read_again_stays_for_who_holds_it(digits: Model) -> None:
    def many(start: int) -> None:
        for number in range(start, start + 70):
            digits.encode("x", images=[np.full((4, 4, 3), number % 256, np.uint8) + np.uint8(start // 256)])

    session = digits.session()
    session.append(about(picture("5")))
    answer = session.stream_chat(temperature=0, max_new_tokens=6)
    many(0)
    digits.encode_chat(about(picture("5")))
    many(100)
    assert "".join(chunk.text for chunk in answer) == "5"


def test_sessions_of_text_models_name_pictures() -> None:
    model = onnx_textgen.load(threads=1, device="cpu")
    chatty = Model(model.folder, model.manifest, model.graph, chat_template=PLAIN)
    session = chatty.session()
    address = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    session.append(
        [{"role": "user", "content": [address]}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    )
    assert len(session.messages) == 3


def test_the_vision_part_counts_as_a_part_of_the_model(digits: Model) -> None:
    files = digits.manifest.files
    weights = sum(record.size for name, record in files.items() if name.endswith(".onnx_data"))
    assert package_bytes(digits.folder, digits.manifest) > weights > 800_000
    own = package_digest(digits.folder, digits.manifest)
    for name in ("vision.onnx", "image_processor.onnx", "onnx/vision_encoder.onnx_data"):
        other = dataclasses.replace(digits.manifest, files={**files, name: FileRecord(files[name].size, "0" * 64)})
        assert package_digest(digits.folder, other) != own
    other = dataclasses.replace(digits.manifest, files={**files, "onnx/embed_tokens.onnx": FileRecord(1, "0" * 64)})
    assert package_digest(digits.folder, other) == own  # which other runtimes open
