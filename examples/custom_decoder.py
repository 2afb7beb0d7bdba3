"""A custom decoder: trained for a few seconds, exported, then run without PyTorch.

    pip install "onnx-textgen[export]"
    python examples/custom_decoder.py my-model
    onnx-textgen generate --model my-model --token-ids 72,101,108,108,111

It memorises the bytes of a short text; docs/your_own_decoder.md explains the two ways to a cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import onnx_textgen
from onnx_textgen_export import LayerCache, cached_attention, export

TEXT = b"Hello, world. A decoder reads what came before and guesses what comes next. Hello, world again. " * 4
STEPS, WINDOW = 150, 64


class Block(nn.Module):
    """Attention over all that came before, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, cache: LayerCache | None) -> Tensor:
        """x: [batch, new, width]."""
        batch, new, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, new, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = cached_attention(query, key, value, cache)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, new, width))
        return x + self.mlp(self.norm2(x))


class ByteDecoder(nn.Module):
    """The next byte of a text."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, context: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cache: Sequence[LayerCache] | None = None) -> Tensor:
        """Logits [batch, new, 256]; `cache` has one entry for each layer, and is None in training."""
        x = self.tokens(input_ids) + self.positions(position_ids)
        for index, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[index])
        return self.head(x)


def train(decoder: ByteDecoder) -> None:
    """Learn `TEXT` by heart."""
    data, optimizer = torch.tensor(list(TEXT)), torch.optim.AdamW(decoder.parameters(), 3e-3)
    for _ in range(STEPS):
        starts = torch.randint(len(data) - WINDOW - 1, (16,)).tolist()
        rows = torch.stack([data[start : start + WINDOW + 1] for start in starts])
        logits = decoder(rows[:, :-1], torch.arange(WINDOW)[None])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Train, export, generate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    torch.manual_seed(0)
    folder, decoder = parser.parse_args().out, ByteDecoder()
    train(decoder)
    export(decoder.eval(), folder, context_length=128)  # compared with PyTorch, and refused if it differs
    made = onnx_textgen.load(folder).generate(list(b"Hello"), max_new_tokens=40, temperature=0)
    print(bytes(made.token_ids).decode())


if __name__ == "__main__":
    main()
