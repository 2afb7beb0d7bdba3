"""`python importance_matrix.py CHECKPOINT TOKENS.json OUT.npz`: what llama.cpp's llama-imatrix measures, by torch.

The mean square of each input channel of every product inside the layers, over the windows of token ids in TOKENS.json. The output
layer is left out, as llama-imatrix does unless told otherwise.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers


def is_product(module: torch.nn.Module) -> bool:
    """Whether a module multiplies by a matrix; GPT-2's own kind of layer does too."""
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def mean_squares(model: torch.nn.Module, windows: list[list[int]]) -> dict[str, np.ndarray]:
    """Mean square of each input channel by the module's name."""
    sums: dict[str, torch.Tensor] = {}

    def record(name: str) -> None:
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            squares = inputs[0].double().square().flatten(0, -2).sum(0)
            sums[name] = sums.get(name, 0) + squares

        model.get_submodule(name).register_forward_pre_hook(hook)

    for name, module in model.named_modules():
        if is_product(module):
            record(name)
    with torch.inference_mode():
        for ids in windows:
            model(input_ids=torch.tensor([ids]))
    count = sum(map(len, windows))
    return {name: (total / count).float().numpy() for name, total in sums.items()}


def main(checkpoint: Path, tokens: Path, out: Path) -> None:
    """Write the matrix by llama.cpp's names of the tensors."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    architectures = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    layers = model.config.get_text_config().num_hidden_layers
    names = gguf.get_tensor_name_map(architectures[model.config.model_type], layers)
    found = mean_squares(model, json.loads(tokens.read_text()))
    by_tensor = {names.get_name(f"{name}.weight", try_suffixes=(".weight",)): values for name, values in found.items()}
    np.savez(out, **{name: values for name, values in by_tensor.items() if name.startswith("blk.")})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
