"""The encoder of a model that reads sound, by windows of one length: each is named by an id below 0, made from its samples.

So a window is a source like a text, and what knows sources by their ids knows it too.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..backends.onnxruntime_session import OnnxRuntimeSession
from ..cancellation import UNCANCELLED, CancelScope
from ..encoders.encoder import Arrays, Encoded, GraphEncoder, run_once
from ..errors import PackageError, PromptError
from .features import INPUT_FEATURES, features_of

SOUND = "sound"
"""The input [samples] of the graph that makes features."""
Samples = npt.NDArray[np.float32]


class Window:
    """A stretch of sound, and what the encoder made of it, once it has read it."""

    def __init__(self, samples: Samples) -> None:
        """`samples` [samples], from -1 to 1, at the rate of the model."""
        self.samples = samples
        digest = hashlib.sha256(samples.tobytes()).digest()
        self.id = -1 - (int.from_bytes(digest[:8], "little") >> 1)
        self.encoded: Encoded | None = None
        self.reading = threading.Lock()


class SpeechEncoder(GraphEncoder):
    """Reads windows of sound for a decoder. Safe to use from several threads."""

    def __init__(self, graph: OnnxRuntimeSession, names: Sequence[str], log_mel: OnnxRuntimeSession | None = None) -> None:
        """`log_mel`: makes features of sound; None: only ids that stand for features are read.

        Raises `PackageError` for graphs that do not fit each other.
        """
        super().__init__(graph, names)
        shape, kind = graph.inputs.get(INPUT_FEATURES, ([], ""))
        match shape:
            case [_, int(mels), int(frames)]:
                self.shape = mels, frames
            case _:
                raise PackageError(f"the encoder's graph does not take {INPUT_FEATURES}; export the model again")
        self.dtype = np.float16 if "float16" in kind else np.float32
        if log_mel is not None and (set(log_mel.inputs) != {SOUND} or INPUT_FEATURES not in log_mel.outputs):
            raise PackageError("the graphs that read sound do not fit each other; export the model again")
        self.log_mel = log_mel
        self.windows, self.keeping = weakref.WeakValueDictionary[int, Window](), threading.Lock()

    def keep(self, samples: Samples) -> Window:
        """Make a window known for as long as the caller holds it."""
        window = Window(samples)
        with self.keeping:
            return self.windows.setdefault(window.id, window)

    def encode(self, token_ids: Sequence[int], scope: CancelScope = UNCANCELLED) -> Encoded:
        """See `Encoder.encode`; a window is read once."""
        if token_ids[0] >= 0:
            return super().encode(token_ids, scope)
        window = self.window_of(token_ids[0])
        with scope.holding(window.reading):
            if window.encoded is None:
                window.encoded = super().encode(token_ids, scope)
        return window.encoded

    def window_of(self, number: int) -> Window:
        """The window of an id; raises `PromptError` for one that nobody holds."""
        if (found := self.windows.get(number)) is None:
            raise PromptError("the sound is not at hand any more; give it again")
        return found

    def feeds_of(self, token_ids: Sequence[int], scope: CancelScope) -> Arrays:
        """See `GraphEncoder.feeds_of`."""
        if token_ids[0] >= 0:
            mels, frames = self.shape
            return {INPUT_FEATURES: self.as_taken(features_of(token_ids, mels, frames)[None])}
        assert self.log_mel is not None, "whoever keeps windows has it"
        feeds = {SOUND: self.window_of(token_ids[0]).samples}
        (found,) = run_once(self.log_mel, [INPUT_FEATURES], feeds, scope, doing="read the sound")
        return {INPUT_FEATURES: self.as_taken(found)}

    def as_taken(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.floating]:
        """Features in the type of the graph."""
        return features.astype(self.dtype)
