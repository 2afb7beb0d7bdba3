"""A stand-in for `Model` without ONNX Runtime, for what the command line does around one.

Its ids are character codes; it says what a test gave it to say, and its logits always prefer the next letter of the alphabet.
"""

from types import SimpleNamespace

import numpy as np

from onnx_textgen.answers.records import ChatAnswer, ChatChunk
from onnx_textgen.api.session import Session
from onnx_textgen.backends.signature import CacheTensor
from onnx_textgen.errors import PromptError
from onnx_textgen.options.merging import make_generation_config
from onnx_textgen.package.manifest import TOKENIZER, FileRecord, Geometry, Manifest
from onnx_textgen.results import Chunk, Score, Stats
from onnx_textgen.text.chat_template import render_chat
from onnx_textgen.text.prefixes import common_prefix

BOS, EOS = 1, 2
VOCAB_SIZE = 128


class CharacterTokenizer:
    """One id per ASCII character."""

    def encode(self, text, *, add_special_tokens=True):
        return [BOS] * add_special_tokens + [ord(character) for character in text]

    def decode(self, token_ids):
        return "".join(chr(i) for i in token_ids if i not in (BOS, EOS))

    def piece(self, token_id):
        return {BOS: "<s>", EOS: "</s>"}.get(token_id, chr(token_id))


class AlphabetDecoder:
    """Prefers the id after the last one."""

    rows, part_size, capabilities = 1, 512, SimpleNamespace(has_states=False)
    prompt_engine, engines, has_windows, images = None, (None,), False, None

    def __init__(self, geometry):
        self.geometry = geometry
        self.token_ids = [[]]
        sizes = (None, geometry.kv_heads, None, geometry.head_size)
        names = [f"{i}.{part}" for i in range(geometry.layers) for part in ("key", "value")]
        float32 = np.dtype(np.float32)
        tensors = [CacheTensor(f"past_key_values.{name}", f"present.{name}", sizes, 2, "shared", float32) for name in names]
        self.cache = SimpleNamespace(capacity=64, tensors=tuple(tensors))

    def feed(self, token_ids, *, row=0, every_position=False, scope=None):
        self.token_ids[row] += token_ids
        following = np.asarray(token_ids if every_position else token_ids[-1:]) + 1
        return -np.abs(np.arange(VOCAB_SIZE) - following[:, None]).astype(np.float32)

    def reusable(self, token_ids, *, row=0):
        return common_prefix(self.token_ids[row], token_ids)

    def picture_boundary(self, token_ids, end):
        return end

    def reserve(self, length, *, row=0):
        pass

    def choose_engine(self, tokens, *, row=0):
        pass

    def mark(self, lengths, *, row=0):
        pass

    def rewind(self, length, *, row=0):
        del self.token_ids[row][length:]


class CharacterSession(Session):
    """A session whose texts the model below speaks."""

    def __init__(self, model):
        super().__init__(SimpleNamespace(opened=model, encoder=model))
        self.model = model

    def stream(self, *, on_progress=None, **options):
        prompt = self.model.encode_chat(self.messages) if self.messages else list(self._token_ids)
        return self.listen(prompt, self.model.stream(prompt, **options))

    def encode_chat(self, messages):
        return self.model.encode_chat(messages)

    def stream_chat(self, *, on_progress=None, **options):
        last = None
        for last in self.stream(**options):
            yield ChatChunk(last.text, token_ids=last.token_ids)
        generation = SimpleNamespace(stats=last.stats, token_ids=last.token_ids)
        yield ChatChunk(answer=ChatAnswer(self.messages[-1]["content"], "", (), last.finish_reason, generation))

    def fork(self):
        other = CharacterSession(self.model)
        other.messages, other._token_ids = list(self.messages), list(self._token_ids)
        return other

    def listen(self, prompt, chunks):
        token_ids, text = [], ""
        try:
            for chunk in chunks:
                token_ids += [i for i in chunk.token_ids if i != EOS]
                text += chunk.text
                self._token_ids = [*prompt, *token_ids]
                yield chunk
        finally:
            chunks.close()
            if self.messages and token_ids:
                self.messages.append({"role": "assistant", "content": text})


class CharacterModel:
    """Says `reply`; keeps the prompt and options of each call. An exception in the reply is raised where it stands."""

    def __init__(self, reply=("Hel", "lo"), *, device="cpu", chat_template=None, tokenizer=True, eos_ids=(EOS,)):
        geometry = Geometry(layers=3, heads=4, kv_heads=2, head_size=4, hidden_size=16, vocab_size=VOCAB_SIZE, context_length=100)
        files = {TOKENIZER: FileRecord(1, "0" * 64)} if tokenizer else {}
        self.manifest = Manifest("characters", "ort", "fp32", geometry, BOS, eos_ids, None, files)
        self.reply, self.device, self.chat_template = reply, device, chat_template
        self.tokenizer, self.has_tokenizer = CharacterTokenizer(), tokenizer
        self.calls, self.closed = [], 0

    @property
    def optional_tokenizer(self):
        return self.tokenizer if self.has_tokenizer else None

    cache_tensors = ()
    images = None

    def memory(self, tokens):
        return SimpleNamespace(total_bytes=192 * tokens)

    def piece(self, token_id):
        return self.tokenizer.piece(token_id) if self.has_tokenizer else f"<{token_id}>"

    def new_context(self, *, adapter=None):
        assert adapter is None
        return AlphabetDecoder(self.manifest.geometry)

    def session(self):
        return CharacterSession(self)

    def encode(self, prompt, *, new_tokens=1):
        if not prompt:
            raise PromptError("the prompt is empty; give some text")
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def encode_chat(self, messages):
        text = render_chat(self.chat_template, messages, bos_token="<s>", eos_token="</s>")
        return self.tokenizer.encode(text, add_special_tokens=False)

    @property
    def generator(self):
        return self

    opened = generator

    def config(self, options, *, searches=False):
        return make_generation_config({}, options)

    def stream(self, prompt, *, context=None, on_progress=None, **options):
        self.calls.append((prompt, {name: value for name, value in options.items() if value is not None}))
        make_generation_config({}, options)
        return self.speak(len(self.encode(prompt)))

    def generate(self, prompts, *, max_new_tokens, **options):
        self.calls.append((prompts, {"max_new_tokens": max_new_tokens} | options))
        return [SimpleNamespace(token_ids=(ord("a"),) * max_new_tokens) for _ in prompts]

    def speak(self, prompt_tokens):
        stats = Stats(prompt_tokens, 0, len(self.reply), 0.1, 0.14, 1.0, 310.0, 61.23, 7)
        try:
            for number, text in enumerate(self.reply, start=1):
                if isinstance(text, BaseException):
                    raise text
                last = number == len(self.reply)
                ids = tuple(ord(character) for character in text)
                yield Chunk(text, ids, finish_reason="length" if last else None, stats=stats if last else None)
        finally:
            self.closed += 1

    def score(self, text, **options):
        ids = self.encode(text)
        return Score(tuple(ids), (-1.0,) * (len(ids) - 1), len(text.encode()))
