"""Reads pictures from files, bytes and arrays, within limits: what a picture costs is known before its pixels are read."""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from ..errors import ImageError, first_line
from ..options.checks import is_address, shown
from ..sizes import in_words

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE = "picture"
"""The input of an image processor's graph: pixels uint8 [height, width, 3]."""
MOST_BYTES = 50 << 20
"""Of a file."""
MOST_PIXELS = 64_000_000
"""Of a picture: 192 MB."""
MOST_EDGE = 12_000
"""Pixels along an edge: some models pad a picture to a square, which takes 432 MB then."""
MOST_ASPECT = 200
"""Times that one edge is longer than the other; transformers refuses such pictures too."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Those of Pillow that are decoded, where it has them; others bring code that few have looked at."""
DATA_URL = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE | re.ASCII)
AT_ONCE = threading.BoundedSemaphore(2)
"""How many pictures are decoded at once: each takes more memory than its file."""
Pixels = npt.NDArray[np.uint8]


def read_picture(source: object, *, fetches: bool = False) -> Pixels:
    """Pixels uint8 [height, width, 3] of a picture: a path, the bytes of a file, a data URL, an array, or an image of Pillow.

    Arrays are [height, width], or [height, width, channels] of 1, 3 or 4 channels: uint8, or numbers from 0 to 1. Pictures are
    turned as their EXIF data says, an animation is its first frame, and what is transparent becomes white. `fetches`: an address
    of the web is a picture too.

    Raises `ImageError` for what is none of these, is too large, or cannot be read.
    """
    if isinstance(source, Mapping):
        raise ImageError(f"a picture should be a path, bytes, an array or an image of Pillow, found {shown(source)}")
    if isinstance(source, str) and (found := DATA_URL.match(source)):
        return decoded(bytes_of_base64(source[found.end() :]))
    if isinstance(source, str) and not source:
        raise ImageError("the path of a picture is empty; give a file")
    if fetches and is_address(source):
        return decoded(bytes_at(str(source)))
    if isinstance(source, str) and re.match(r"\w+://|data:", source):
        raise ImageError(f"a picture is not fetched, found the address {shown(source)}; give a file or a data URL with base64")
    if isinstance(source, str | os.PathLike):
        return decoded(bytes_of_file(Path(source)))
    if isinstance(source, bytes | bytearray | memoryview):
        return decoded(bytes(source))
    if is_pillow(source):
        return of_image(lambda: cast("Image", source))
    return of_array(source)


def as_data_url(source: object, *, fetches: bool = False) -> str:
    """A picture, in any form that `read_picture` takes, as a text that holds it; it is not decoded."""
    if isinstance(source, str) and DATA_URL.match(source):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
    elif fetches and is_address(source):
        content = bytes_at(str(source))
    elif isinstance(source, str | os.PathLike) and not (isinstance(source, str) and re.match(r"\w+://|data:", source)):
        content = bytes_of_file(Path(source))
    else:
        content = as_png(read_picture(source))
    return f"data:;base64,{base64.b64encode(content).decode()}"


def as_png(pixels: Pixels) -> bytes:
    """A picture as the content of a PNG file."""
    from ..extras import explain_missing  # noqa: PLC0415 - its imports take long, and most texts have no pictures

    with explain_missing("keeping pictures", "images"):
        from PIL import Image  # noqa: PLC0415 - not installed everywhere
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def bytes_at(address: str) -> bytes:
    """The content at an address of the web, of a size that a picture may have."""
    from .addresses import fetched  # noqa: PLC0415 - its imports take long, and most models fetch nothing

    return fetched(address, MOST_BYTES)


def is_pillow(source: object) -> bool:
    """Return whether a value is an image of Pillow, which may not be installed."""
    return any(each.__module__.startswith("PIL.") and each.__name__ == "Image" for each in type(source).__mro__)


def bytes_of_base64(text: str) -> bytes:
    """The bytes of base64, of either alphabet, with or without padding and white space."""
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise ImageError(f"the picture has more than {in_words(MOST_BYTES)}; give a smaller one")
    plain = re.sub(r"\s", "", text).translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the picture is not valid base64: {first_line(error)}") from error


def bytes_of_file(path: Path) -> bytes:
    """The bytes of a file of a size that a picture may have."""
    try:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise ImageError(f"cannot read the picture {shown(str(path))}: {reason}") from error
    if len(found) > MOST_BYTES:
        raise ImageError(f"{path} has more than {in_words(MOST_BYTES)}; give a smaller picture")
    return found


def decoded(content: bytes) -> Pixels:
    """The pixels of a file's content."""
    if len(content) > MOST_BYTES:
        raise ImageError(f"the picture has more than {in_words(MOST_BYTES)}; give a smaller one")
    if not content:
        raise ImageError("the picture is empty: it has no bytes")

    def opened() -> Image:
        from PIL import Image  # noqa: PLC0415 - not installed everywhere

        Image.init()
        return Image.open(io.BytesIO(content), formats=[each for each in FORMATS if each in Image.OPEN])

    return of_image(opened)


def of_image(opened: Callable[[], Image]) -> Pixels:
    """The pixels of an image of Pillow, whose size is checked before they are read."""
    from ..extras import explain_missing  # noqa: PLC0415 - as above

    with explain_missing("reading pictures", "images"):
        from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - not installed everywhere
    try:
        with AT_ONCE:
            image = opened()
            check_size(image.width, image.height)
            image.seek(0)
            return rgb(ImageOps.exif_transpose(image))
    except ImageError:
        raise
    except Image.DecompressionBombError as error:  # of a size that Pillow itself refuses
        raise ImageError(f"the picture has too many pixels; {MOST_PIXELS:,} in all are taken here. Make it smaller") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"the picture is of no format that is read here ({', '.join(FORMATS)})") from error
    except Exception as error:  # Pillow's decoders raise many types for damaged files
        raise ImageError(f"the picture cannot be read: {first_line(error)}") from error


def rgb(image: Image) -> Pixels:
    """Red, green and blue; what is transparent is seen on white."""
    from PIL import Image  # noqa: PLC0415

    if image.mode in ("I", "I;16", "I;16B", "I;16L", "F"):
        numbers = np.asarray(image, np.float64)
        top = 65535.0 if image.mode != "F" and numbers.max(initial=0) > 255 else 255.0
        grey = np.clip(numbers * (255.0 / top), 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"), dtype=np.uint8)


def check_size(width: int, height: int) -> None:
    """Raise `ImageError` for a picture without pixels, or with too many."""
    if width < 1 or height < 1:
        raise ImageError(f"the picture has {width} x {height} pixels; give one with some")
    if width * height > MOST_PIXELS or max(width, height) > MOST_EDGE:
        most = f"{MOST_PIXELS:,} in all, and {MOST_EDGE:,} an edge, are taken"
        raise ImageError(f"the picture has {width:,} x {height:,} pixels; {most}. Make it smaller")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise ImageError(f"the picture has {width:,} x {height:,} pixels, a strip; one edge may be {MOST_ASPECT} times the other")


def of_array(source: object) -> Pixels:
    """The pixels of an array."""
    try:
        array = np.asarray(source)
    except Exception as error:  # whatever a library's own array raises
        raise ImageError(f"a picture should be a path, bytes, an array or an image of Pillow, found {shown(source)}") from error
    if array.dtype.kind not in "uif" or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        if array.dtype.kind in "uif":
            raise ImageError(
                f"an array of the shape {list(array.shape)} is no picture; give [height, width] or [height, width, channels]"
            )
        raise ImageError(f"a picture should be a path, bytes, an array or an image of Pillow, found {shown(source)}")
    check_size(array.shape[1], array.shape[0])
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind == "f":
        if not (low >= 0 and high <= 1):
            raise ImageError("an array of fractions should have numbers from 0 to 1; give numbers from 0 to 255 as uint8")
        array = np.rint(array * 255)
    elif low < 0 or high > 255:
        raise ImageError(f"the pixels of an array go from 0 to 255, found {int(low if low < 0 else high)}")
    array = array.astype(np.uint8)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.shape[2] == 4:
        opacity = array[:, :, 3:].astype(np.float32) / 255
        array = np.rint(array[:, :, :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))
