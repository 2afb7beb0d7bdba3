"""onnxruntime-genai, the engine of others that reads our folders; tests that want it skip without it."""

from pathlib import Path

import numpy as np
import pytest

genai = pytest.importorskip("onnxruntime_genai", reason="the engine that these files are for is onnxruntime-genai")


def genai_tokens(folder: Path, ids: list[int], new: int) -> list[int]:
    """A greedy text without the end."""
    model = genai.Model(str(folder))
    params = genai.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + new, do_sample=False)
    generator = genai.Generator(model, params)
    generator.append_tokens(np.array(ids, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token_id) for token_id in generator.get_sequence(0)][len(ids) :]
