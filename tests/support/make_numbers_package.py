"""Makes tests/packages/numbers/: a T5 of 0.1 million parameters that writes numbers as English words, trained in minutes.

Run once with `python -m tests.support.make_numbers_package` (needs the export extra); what it makes is committed. It is the trained
encoder-decoder of the tests: numbers up to 999,999 are its sources, digit by digit.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import T5Config, T5ForConditionalGeneration

from onnx_textgen_export import export

from .numbers_in_words import ONES, TENS, in_words

FOLDER = Path(__file__).parents[1] / "packages" / "numbers"
VOCABULARY = ("<pad>", "</s>", "<unk>", *"0123456789", *ONES, *TENS, "hundred", "thousand", "and")
STEPS, BATCH, LEARNING_RATE = 1600, 128, 3e-3


def make_tokenizer() -> Tokenizer:
    """A token for each digit and for each word; `</s>` ends a source."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    digits = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), digits])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return tokenizer


def padded(rows: list[list[int]], padding: int) -> torch.Tensor:
    """Rows of one length."""
    longest = max(map(len, rows))
    return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])


def train() -> T5ForConditionalGeneration:
    """Train the model."""
    torch.manual_seed(0)
    drawn, ids = random.Random(0), {word: index for index, word in enumerate(VOCABULARY)}
    config = T5Config(
        **{"vocab_size": 48, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
        **{"dropout_rate": 0.0, "feed_forward_proj": "gated-gelu", "n_positions": 128},
        **{"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    )
    model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    for step in range(STEPS):
        numbers = [drawn.randrange(10 ** drawn.randint(1, 6)) for _ in range(BATCH)]
        sources = padded([[*(ids[digit] for digit in str(number)), 1] for number in numbers], 0)
        texts = padded([[*(ids[word] for word in in_words(number)), 1] for number in numbers], -100)
        loss = model(input_ids=sources, attention_mask=(sources != 0).long(), labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(step, float(loss), flush=True)
    return model


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train().save_pretrained(folder)
        make_tokenizer().save(f"{folder}/tokenizer.json")
        made = export(
            folder, FOLDER, context_length=128, name="numbers", origin="trained for the tests", force=True, attention_maps=True
        )
    print(made.folder, sum(record.size for record in made.manifest.files.values()), "bytes")
