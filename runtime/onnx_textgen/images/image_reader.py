"""Reads pictures for a decoder: its image processor and its vision part, each a graph."""

from __future__ import annotations

import hashlib
import threading
from typing import cast

import numpy as np

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..backends.protocol import ClosedGraph
from ..cancellation import UNCANCELLED, CancelScope
from ..encoders.encoder import run_once
from ..errors import ModelError, PackageError
from ..package.manifest import MOST_IMAGE_TOKENS, ImageRecord
from .image_rows import ImageRows, ReadImage
from .pictures import PICTURE, Pixels, read_picture

IMAGE_ROWS = "image_rows"
"""The output [tokens, width] of a vision part."""


class ImageReader:
    """The two graphs that read pictures. Safe to use from several threads."""

    def __init__(self, processor: OnnxRuntimeSession, vision: OnnxRuntimeSession, record: ImageRecord, width: int) -> None:
        """`width`: that the decoder takes; raises `PackageError` for graphs that do not fit each other, or the decoder."""
        self.processor, self.vision, self.record = processor, vision, record
        self.rows, self.lock = ImageRows(width, both_ways=record.both_ways), threading.Lock()
        made, wanted = set(processor.outputs), set(vision.inputs)
        if set(processor.inputs) != {PICTURE} or made != wanted or IMAGE_ROWS not in vision.outputs:
            raise PackageError("the graphs that read pictures do not fit each other; export the model again")
        shape, _ = vision.outputs[IMAGE_ROWS]
        if shape != [*(shape[:2] if record.has_grid else [record.tokens]), width]:
            taken = f"[down, across, {width}]" if record.has_grid else f"[{record.tokens}, {width}]"
            raise PackageError(f"pictures become rows {shape}, and the decoder takes {taken}; export the model again")

    def close(self) -> None:
        """Release the graphs, and forget the pictures; any later use raises `ModelError`."""
        self.processor = self.vision = cast("OnnxRuntimeSession", ClosedGraph())
        self.rows.clear()

    def read(self, source: object, scope: CancelScope = UNCANCELLED) -> ReadImage:
        """Read a picture, unless it is known; see `read_picture`.

        Raises `ImageError`, `ModelError` if a run fails, and `InterruptedRunError` if `scope` ends it.
        """
        return self.read_pixels(read_picture(source), scope)

    def read_pixels(self, pixels: Pixels, scope: CancelScope = UNCANCELLED) -> ReadImage:
        """Read the pixels uint8 [height, width, 3] of a picture."""
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
        if (known := self.rows.known(digest)) is not None:
            return known
        with self.lock:  # one at a time: each run uses all threads, and a second request may ask for the same picture
            if (known := self.rows.known(digest)) is not None:
                return known
            names = list(self.processor.outputs)
            numbers = run_once(self.processor, names, {PICTURE: pixels}, scope, doing="prepared a picture")
            given = {name: np.asarray(array) for name, array in zip(names, numbers, strict=True)}
            (rows,) = run_once(self.vision, [IMAGE_ROWS], given, scope, doing="read a picture")
            found = np.asarray(rows, np.float32)
            if not np.isfinite(found).all():
                raise ModelError("the rows of a picture are not finite; check the model with: onnx-textgen verify DIR")
            if not 1 <= (count := found.size // found.shape[-1]) <= MOST_IMAGE_TOKENS:
                raise ModelError(f"the picture has {count:,} rows, and from 1 to {MOST_IMAGE_TOKENS:,} are possible; take another")
            grid = (found.shape[0], found.shape[1]) if self.record.has_grid else None
            image = ReadImage(digest, found.reshape(-1, found.shape[-1]), grid, self.record.row_break_ids)
            self.rows.keep(image)
        return image
