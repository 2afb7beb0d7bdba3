"""Pictures in messages of all APIs' forms."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from onnx_textgen.errors import ImageError, TemplateError
from onnx_textgen.images.image_rows import ReadImage
from onnx_textgen.images.in_messages import (
    as_text,
    expanded,
    kept,
    placed,
    places_in,
    shown,
    source_of,
    without_pictures,
)
from onnx_textgen.package.manifest import ImageRecord, TileText

URL = "data:image/png;base64,iVBO"
ABOUT = ImageRecord("<image>", "<image><image>", 9, 2)


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ({"type": "image", "image": "a.png"}, "a.png"),
        ({"type": "image", "path": "a.png"}, "a.png"),
        ({"type": "image", "url": URL}, URL),
        ({"type": "image", "base64": base64.b64encode(b"abc").decode()}, b"abc"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, URL),
        ({"type": "image_url", "image_url": URL}, URL),
        ({"type": "input_image", "image_url": URL}, URL),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "YWJj"}}, b"abc"),
    ],
)
def test_forms(part: dict[str, Any], source: object) -> None:
    assert source_of(part) == source


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": {}},
        {"type": "input_image", "file_id": "x"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "x"}},
        {"type": "image", "base64": "***"},
        {"type": "image", "base64": 5},
    ],
)
def test_what_has_no_picture_gets_one_line(part: dict[str, Any]) -> None:
    with pytest.raises(ImageError) as error:
        source_of(part)
    assert "\n" not in str(error.value)


def test_messages_keep_their_order() -> None:
    text = {"type": "text", "text": "and"}
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "a"}, text, {"type": "image", "image": "b"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [{"type": "image", "image": "c"}]},
    ]
    places, sources = without_pictures(messages)
    assert sources == ["a", "b", "c"]
    assert places_in(places) == (0, 1, 2)
    assert places_in([{"role": "user", "content": [{"type": "text", "text": "x", "place": 0}]}]) == ()
    assert places_in(places[::-1]) == (2, 0, 1)
    assert [part["text"] for part in as_text(places, "!")[0]["content"]] == ["!0!\n", "and", "!1!\n"]
    assert shown(messages[0]["content"]) == "[picture] and [picture]"


def test_places_are_expanded_by_what_each_picture_becomes() -> None:
    one = ReadImage(b"1", np.zeros((2, 3), np.float32))
    cut = ReadImage(b"2", np.zeros((6, 3), np.float32), tiles=TileText(1, 2, 3, "[<image>|<image>|<image>]"))
    assert expanded("a <image> b <image>", [one, cut], ABOUT) == "a <image><image> b [<image>|<image>|<image>]"
    assert expanded("a", [], ABOUT) == "a"


def test_a_token_stands_for_all_rows_of_a_tile() -> None:
    cut = ReadImage(b"2", np.zeros((6, 3), np.float32), tiles=TileText(1, 2, 3, "[<image>|<image>|<image>]"))
    assert placed([9, 1, 9, 2, 9], [cut], ABOUT) == [*cut.ids[:2], 1, *cut.ids[2:4], 2, *cut.ids[4:]]
    with pytest.raises(TemplateError, match="stands for a row"):
        placed([9, 9], [cut], ABOUT)


def test_tokens_become_the_ids_of_rows() -> None:
    one = ReadImage(b"1", np.zeros((2, 3), np.float32))
    assert placed([4, 9, 9, 5], [one], ABOUT) == [4, *one.ids, 5]


def test_a_session_keeps_the_picture_itself() -> None:
    message = kept({"role": "user", "content": [{"type": "image", "image": b"abc"}, {"type": "text", "text": "x"}]})
    assert message["content"][0] == {"type": "image", "image": "data:;base64,YWJj"}
    plain = {"role": "user", "content": "x"}
    assert kept(plain) is plain
