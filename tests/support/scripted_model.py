"""A stand-in with `Model`'s face that writes on and on, as slowly as a test wants, and fails where a test wants it to."""

import contextlib
import dataclasses
import itertools
import math
import threading
import time
from pathlib import Path

from onnx_textgen import Alternative, Chunk, Stats
from onnx_textgen.errors import PromptError
from onnx_textgen.options.merging import make_generation_config
from onnx_textgen.package.reading import read_manifest
from onnx_textgen.text.tokenizer_json import Streaming
from support.patient_http import LONGEST_WAIT

TINY_PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
SWIFT_TOKENS = 200
PIECES = [" a", " small", " cat", " sat", " by", " the", " door", ".", "\n", " <img src=x onerror=alert(1)>", " &amp;", " moon"]


class ScriptedTokenizer:
    """Every token is its piece, whatever stands around it."""

    streaming = Streaming.TOKENS

    def piece(self, token_id):
        return PIECES[token_id]

    visible_token = piece

    def decode(self, token_ids):
        return "".join(map(self.piece, token_ids))


class ScriptedModel:
    """Counts the streams that are open, so that a test sees whether each was closed.

    `later_seconds`: what a token behind the first `SWIFT_TOKENS` takes, so that a text lasts until a test has stopped it.
    """

    device = "cpu"
    chat_template = None

    def __init__(self, *, seconds_per_token=0.0, later_seconds=0.0, fail_after=None, error=None):
        manifest = read_manifest(TINY_PACKAGE)
        geometry = dataclasses.replace(manifest.geometry, context_length=100_000)
        self.manifest = dataclasses.replace(manifest, name="scripted", geometry=geometry)
        self.tokenizer = ScriptedTokenizer()
        self.later_seconds = later_seconds
        self.seconds_per_token, self.fail_after, self.error = seconds_per_token, fail_after, error
        self.open_streams = self.streamed_tokens = 0
        self.may_go_on = threading.Event()
        """Cleared by a test whose texts are to wait."""
        self.may_go_on.set()

    def stream(self, prompt, *, logprobs=0, **options):
        config = make_generation_config({}, options)
        return self.write(config, logprobs)

    def encode(self, prompt):
        if not prompt:
            raise PromptError("the prompt is empty; give some text")
        return [0] * 5

    def write(self, config, logprobs):
        with self.counted():
            for step in itertools.count():
                self.may_go_on.wait(LONGEST_WAIT)
                time.sleep(self.seconds_per_token if step < SWIFT_TOKENS else max(self.seconds_per_token, self.later_seconds))
                if step == self.fail_after:
                    raise self.error
                self.streamed_tokens += 1
                yield scripted_chunk(config, step, logprobs)
                if step + 1 == config.max_new_tokens:
                    return

    @contextlib.contextmanager
    def counted(self):
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1


def scripted_chunk(config, step, logprobs):
    """Takes the likeliest token, now and then the third, and every seventh time one that is not among the likeliest."""
    token = step % len(PIECES)
    rank = 11 if step % 7 == 6 else 2 if step % 5 == 4 else 0
    rivals = tuple(
        Alternative((token - rank + place) % len(PIECES), "", math.log(0.9 / 2 ** (place + 1))) for place in range(logprobs)
    )
    chunk = Chunk(PIECES[token], (token,), (math.log(0.9 / 2 ** (rank + 1)),), (rivals,))
    if step + 1 < config.max_new_tokens:
        return chunk
    return dataclasses.replace(
        chunk, finish_reason="length", stats=Stats(5, 0, step + 1, 0.01, 0.012, 1.0, 500.0, 33.3, config.seed)
    )
