"""Makes the checkpoint of tests/packages/optimum-seq2seq/ and its expected.json, with the transformers that optimum-onnx supports.

Run in an environment of its own, then optimum-cli, as tests/packages/README.md says: `python make_optimum_seq2seq.py CHECKPOINT`.
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

VOCABULARY = ["<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(61))]
LENGTHS = (1, 3, 7, 12, 25)


def make_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **special)


def make_model():
    """Random weights, large enough that texts vary with their source."""
    torch.manual_seed(3)
    config = T5Config(
        **{"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2},
        **{"dropout_rate": 0.0, "n_positions": 128, "tie_word_embeddings": False},
        **{"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    )
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(0, 1.0 if "bias" in name else 0.8)
    return model


def expected(model, source):
    """What transformers writes for a source, greedily and with four beams, and the log-probabilities of the greedy text."""
    ids = torch.tensor([source])
    with torch.no_grad():
        greedy = model.generate(ids, max_new_tokens=24, do_sample=False)[0]
        beams = model.generate(ids, max_new_tokens=16, num_beams=4, do_sample=False)[0]
        logits = model(input_ids=ids, decoder_input_ids=greedy[None, :-1]).logits[0].double()
    chosen = torch.log_softmax(logits, -1)[torch.arange(len(greedy) - 1), greedy[1:]]
    logprobs = [round(value, 6) for value in chosen.tolist()]
    return {"source": source, "greedy": greedy[1:].tolist(), "beams": beams[1:].tolist(), "logprobs": logprobs}


if __name__ == "__main__":
    folder, drawn, model = Path(sys.argv[1]), random.Random(1), make_model()
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    sources = [[*(drawn.randrange(3, 64) for _ in range(length)), 1] for length in LENGTHS]
    (folder / "expected.json").write_text(json.dumps([expected(model, source) for source in sources]) + "\n", encoding="utf-8")
