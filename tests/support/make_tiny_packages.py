"""Makes tests/packages/: two model folders of 0.1 MB with random weights, one per target, for tests that need no torch.

Run once with `python tests/support/make_tiny_packages.py` (needs the export extra); what it makes is committed. float32, so that
sums agree to the last digits however a text is cut, and large random weights, so that the greedy text is no loop of one token.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from onnx_textgen_export import DecoderConfig, TinyTransformer, export

FOLDER = Path(__file__).parents[1] / "packages"


def make_tokenizer() -> Tokenizer:
    """Every byte is a token; 0 begins and 1 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [], trainers.BpeTrainer(vocab_size=258, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def make_model() -> TinyTransformer:
    """Two layers with grouped heads and rotary positions."""
    torch.manual_seed(7)
    model = TinyTransformer(
        DecoderConfig(
            vocab_size=258, width=32, heads=4, kv_heads=2, feed_forward=64, context_length=600, positions="rotary", norm="rms"
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.35)
    return model


if __name__ == "__main__":
    for target in ("ort", "standard"):
        made = export(
            make_model(),
            FOLDER / target,
            target=target,
            tokenizer=make_tokenizer(),
            eos_ids=(1,),
            name=f"tiny-{target}",
            force=True,
        )
        print(made.folder, sum(record.size for record in made.manifest.files.values()), "bytes")
