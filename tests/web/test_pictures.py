"""`runtime/web/textgen` reads pictures in Node, and writes what Python writes."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import onnx_textgen
from onnx_textgen.package.locate import find_package
from onnx_textgen_export import export
from support.drawn_numbers import drawn
from support.image_checkpoints import KINDS, noise, write_checkpoint
from support.node import Node, NodeError

QUESTION = "What number is this?"


@pytest.fixture(scope="module", params=["node", "web"])
def digits(node: Node, request: pytest.FixtureRequest) -> int:
    return int(node.call("open", request.param, str(find_package("digits"))))


@pytest.fixture(scope="module")
def model() -> onnx_textgen.Model:
    return onnx_textgen.load("digits", device="cpu", threads=1)


def pixels(number: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(drawn(number))).convert("RGB"))


def read(node: Node, handle: int, picture: Any) -> int:
    """The handle of a picture [height, width, channels]."""
    given = {"data": base64.b64encode(picture.tobytes()).decode(), "height": picture.shape[0], "width": picture.shape[1]}
    return int(node.call("picture", handle, given))


def asked(image: Any, question: str = QUESTION) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]


def answered(node: Node, handle: int, messages: list[dict[str, Any]]) -> tuple[list[int], str]:
    """Ids of a chat, those of rows as -1, and the answer."""
    ids = node.call("encode_chat", handle, messages)
    found = node.call("generate", handle, ids, {"temperature": 0, "max_new_tokens": 6})
    return [max(each, -1) for each in ids], "".join(chunk["text"] for chunk in found["chunks"])


def test_it_reads_numbers_as_python_does(node: Node, digits: int, model: onnx_textgen.Model) -> None:
    for number in ("407", "58", "9"):
        messages = asked(pixels(number))
        ids, text = answered(node, digits, asked(read(node, digits, pixels(number))))
        assert ids == [max(each, -1) for each in model.encode_chat(messages)]
        assert text == number


def test_a_chat_with_two_pictures_and_another_without(node: Node, digits: int, model: onnx_textgen.Model) -> None:
    pictures = [pixels("31"), pixels("8")]
    history = [{"role": "assistant", "content": "31"}]
    wanted = model.chat([*asked(pictures[0]), *history, *asked(pictures[1])], temperature=0, max_new_tokens=6).text
    first, second = (read(node, digits, each) for each in pictures)
    assert answered(node, digits, [*asked(first), *history, *asked(second)])[1] == wanted
    hello = [{"role": "user", "content": "Hello"}]
    assert answered(node, digits, hello)[1] == model.chat(hello, temperature=0, max_new_tokens=6).text


def test_a_picture_that_is_read_again_has_the_same_ids(node: Node, digits: int) -> None:
    first, again, other = (read(node, digits, pixels(number)) for number in ("12", "12", "13"))
    ids = [node.call("encode_chat", digits, asked(each)) for each in (first, again, other)]
    assert ids[0] == ids[1] and ids[0] != ids[2]


def test_any_number_of_channels(node: Node, digits: int) -> None:
    color = pixels("77")
    grey = np.ascontiguousarray(color[:, :, :1])
    clear = np.concatenate([color, np.where(color[:, :, :1] > 127, 0, 255).astype(np.uint8)], axis=2)  # its light parts are white
    for each in (grey, clear, np.concatenate([color, np.full_like(grey, 255)], axis=2)):
        assert answered(node, digits, asked(read(node, digits, each)))[1] == "77"


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        ({"data": "", "width": 0, "height": 3}, "should be"),
        ({"data": "AAAA", "width": 2, "height": 3}, "has 3 bytes; give 1, 3 or 4"),
        ({"data": "AAAA", "width": 60_000, "height": 60_000}, "at most 16777216 are read"),
    ],
)
def test_what_is_no_picture_gets_one_line(node: Node, digits: int, picture: dict[str, Any], why: str) -> None:
    with pytest.raises(NodeError, match=why) as error:
        node.call("picture", digits, picture)
    assert error.value.kind == "PromptError"


def test_models_of_text_and_forgotten_pictures_say_so(node: Node, digits: int) -> None:
    story = int(node.call("open", "node", str(find_package("tiny-transformer"))))
    with pytest.raises(NodeError, match="reads text alone here; leave the picture out"):
        read(node, story, pixels("1"))
    with pytest.raises(NodeError, match="read the picture again"):
        node.call("generate", digits, [5, -(2**40)], {"max_new_tokens": 2})
    with pytest.raises(NodeError, match=r"pictures that `Model.readPicture` returned"):
        node.call("encode_chat", digits, [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}])


STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}"
    "{% endif %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}<|assistant|>"
)
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


@pytest.mark.parametrize("template", [STRICT, PLAIN])
def test_other_templates_get_what_python_gives_them(template: str, node: Node, digits: int, model: onnx_textgen.Model) -> None:
    images = model.generator.opened.images
    theirs = onnx_textgen.Model(model.folder, model.manifest, model.graph, chat_template=template, images=images)
    here = int(node.call("changed", digits, template))
    pictures = [pixels("3"), pixels("4")]
    handles = [read(node, digits, each) for each in pictures]

    def chat(images: list[Any]) -> list[dict[str, Any]]:
        return [{"role": "system", "content": "Be brief."}, *asked(images[0]), *asked(images[1], "And this?")]

    ours = node.call("encode_chat", here, chat(handles))
    assert [max(each, -1) for each in ours] == [max(each, -1) for each in theirs.encode_chat(chat(pictures))]
    rows = [each for each in ours if each < 0]
    assert rows == [*node.call("ids", handles[0]), *node.call("ids", handles[1])]


def test_a_chat_may_have_more_pictures_than_are_kept(node: Node, digits: int) -> None:
    handles = [read(node, digits, noise(8, 8, seed)) for seed in range(20)]
    content = [*({"type": "image", "image": each} for each in handles[:15]), {"type": "text", "text": "?"}]
    ids = node.call("encode_chat", digits, [{"role": "user", "content": content}])
    assert sum(each < 0 for each in ids) == 15 * 64
    found = node.call("generate", digits, ids, {"temperature": 0, "max_new_tokens": 2})
    assert found["chunks"] and found["pictures"] == 15  # the text holds them


def test_a_picture_that_is_read_twice_at_once_is_one(node: Node, digits: int) -> None:
    picture = noise(9, 9, 3)
    given = {"data": base64.b64encode(picture.tobytes()).decode(), "height": 9, "width": 9}
    assert node.call("pictures_at_once", digits, given)


def test_what_is_no_chat_gets_a_line_and_an_expansion_is_no_pattern(node: Node, digits: int) -> None:
    with pytest.raises(NodeError, match="message 0 is no object"):
        node.call("encode_chat", digits, [None])
    other = int(node.call("changed", digits, None, {"expansion": "$&" + "<image>" * 64 + "$$"}))
    ids = node.call("encode_chat", other, asked(read(node, digits, pixels("5"))))
    assert sum(each < 0 for each in ids) == 64


def test_text_that_looks_like_the_place_of_a_picture_is_text(node: Node, digits: int, model: onnx_textgen.Model) -> None:
    question = "What does <image> mean?"
    ids = node.call("encode_chat", digits, asked(read(node, digits, pixels("5")), question))
    assert [max(each, -1) for each in ids] == [max(each, -1) for each in model.encode_chat(asked(pixels("5"), question))]


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 3, 40, 112, 124, 127, 230])
def test_no_part_of_a_prompt_cuts_a_picture_that_is_read_both_ways(
    length: int, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = bidirectional(tmp_path_factory)
    model = onnx_textgen.load(folder, device="cpu", threads=1)
    handle = int(node.call("open", "node", str(folder)))
    picture = noise(30, 40)
    ids = model.encode("x" * length + "<boi>, what?"[: 30 if length < 200 else 5], images=[picture])
    here = node.call("ids", read(node, handle, picture))
    left = iter(here)
    sent = [next(left) if each < 0 else each for each in ids]
    wanted = model.generate(ids, temperature=0, max_new_tokens=4)
    for _ in range(2):  # the second begins with what was kept
        found = node.call("generate", handle, sent, {"temperature": 0, "max_new_tokens": 4})
        assert [chunk["token_id"] for chunk in found["chunks"] if chunk["token_id"] is not None] == list(wanted.token_ids)


def bidirectional(factory: pytest.TempPathFactory) -> Path:
    """A package that reads the tokens of a picture in both directions, made once."""
    place = factory.getbasetemp() / "bidirectional"
    if not place.exists():
        write_checkpoint("gemma3", place / "checkpoint", KINDS["gemma3"])
        (place / "checkpoint" / "generation_config.json").write_text('{"eos_token_id": 255}')  # others open no model without one
        export(place / "checkpoint", place / "package")
    return place / "package"
