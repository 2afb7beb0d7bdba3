"""Pictures of all forms become the same pixels, and what is none gets one line, in bounded memory."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from onnx_textgen.errors import ImageError
from onnx_textgen.images.pictures import MOST_BYTES, as_data_url, read_picture

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (20, 30, 3), dtype=np.uint8)


def content(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


PNG = content(Image.fromarray(PIXELS))


def test_all_forms_of_a_picture_are_the_same_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    coded = base64.b64encode(PNG).decode()
    forms = [path, str(path), PNG, bytearray(PNG), memoryview(PNG), PIXELS, PIXELS.tolist(), PIXELS / 255, Image.fromarray(PIXELS)]
    forms += [f"data:image/png;base64,{coded}", f"data:;base64,{coded}", f"DATA:image/png;charset=utf-8;BASE64,{coded}"]
    forms += [
        f"data:image/png;base64,{coded.rstrip('=').replace('+', '-').replace('/', '_')}",
        as_data_url(path),
        as_data_url(PIXELS),
    ]
    for form in forms:
        assert np.array_equal(read_picture(form), PIXELS)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM"])
def test_formats(kind: str) -> None:
    smooth = Image.fromarray(np.full((16, 16, 3), (200, 30, 60), np.uint8))
    found = read_picture(content(smooth, kind))
    assert found.shape == (16, 16, 3) and np.abs(found.astype(int) - (200, 30, 60)).max() < 12


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_modes_become_red_green_and_blue(mode: str) -> None:
    grey = Image.fromarray(np.full((8, 9), 128, np.uint8))
    image = Image.fromarray(np.full((8, 9), 128 * 257, np.uint16)) if mode == "I;16" else grey.convert(mode)
    found = read_picture(image)
    assert found.shape == (8, 9, 3) and found.dtype == np.uint8
    if mode != "1":
        assert np.abs(found.astype(int) - 128).max() <= 3


def test_what_is_transparent_is_white() -> None:
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    assert (read_picture(clear) == 255).all()
    assert (read_picture(content(clear)) == 255).all()
    assert (read_picture(np.zeros((4, 4, 4), np.uint8)) == 255).all()


@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_turns(turn: int) -> None:
    image = Image.new("RGB", (12, 6), "white")
    image.paste("black", (0, 0, 3, 3))
    exif = image.getexif()
    exif[0x0112] = turn
    found = read_picture(content(image, "PNG", exif=exif.tobytes()))
    assert found.shape[:2] == ((6, 12) if turn < 5 else (12, 6))
    corner = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}[turn]
    assert (found[corner] == 0).all()


def test_an_animation_is_its_first_frame() -> None:
    frames = [Image.new("RGB", (5, 5), color) for color in ("red", "blue")]
    assert (read_picture(content(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0] == (255, 0, 0)).all()


def bomb(width: int, height: int) -> bytes:
    """A PNG of few bytes that says it has many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"", "no bytes"),
        (b"abc", "no format"),
        (b"%PDF-1.4", "no format"),
        (PNG[:60], "cannot be read"),
        (PNG[:-40], "cannot be read"),
        (bomb(60_000, 60_000), "too many pixels"),
        (bomb(9_000, 9_000), "9,000 x 9,000"),
        (bomb(100_000, 10), "100,000 x 10"),
        (bomb(10_000, 10), "strip"),
        (b"\xff\xd8\xff" + bytes(MOST_BYTES), "52.4 MB"),
        ("", "empty"),
        ("missing.png", "No such file"),
        (".", "cannot read"),
        ("a\0b", "cannot read"),
        ("http://example.org/a.png", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("data:image/png,abc", "not fetched"),
        ("data:image/png;base64,!!!", "base64"),
        ("data:image/png;base64,", "no bytes"),
        (5, "no picture"),
        (None, "found"),
        ({"a": 1}, "found a dict"),
        (np.zeros((0, 5, 3), np.uint8), "5 x 0"),
        (np.zeros((5, 5, 2), np.uint8), "no picture"),
        (np.zeros((5, 5, 3)) - 1, "0 to 1"),
        (np.full((5, 5, 3), np.nan), "0 to 1"),
        (np.full((5, 5, 3), 300), "0 to 255"),
        ([["a"]], "found"),
    ],
    ids=str,
)
def test_what_is_no_picture_gets_one_line(source: object, why: str) -> None:
    with pytest.raises(ImageError, match=why) as error:
        read_picture(source)
    assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]), data=st.data())
def test_damaged_files_are_pixels_or_one_line(kind: str, data: st.DataObject) -> None:
    damaged = bytearray(content(Image.fromarray(PIXELS), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        found = read_picture(bytes(damaged[:cut]) if data.draw(st.booleans()) else bytes(damaged))
    except ImageError as error:
        assert "\n" not in str(error)
    else:
        assert found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
