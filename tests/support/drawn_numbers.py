"""A picture of a number, which the embedded model `digits` reads."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from onnx_textgen.images.pictures import as_png

SIDE = 64


def drawn(number: str) -> bytes:
    """The content of a PNG file of a number, black on white, of 64 x 64 pixels."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    ImageDraw.Draw(image).text((8, 16), number, fill="black", font=ImageFont.load_default(27))
    return as_png(np.asarray(image))
