"""onnx-textgen, by its public interface."""

import os
import time
from pathlib import Path

import worker


class Engine:
    """See `worker.Engine`."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import onnx_textgen  # noqa: PLC0415 - counts as loading

        self.options = {"temperature": 0.0, "loop_guard": "off"}  # random weights do not choose the end of text
        place, device = Path(model) / os.environ.get("GRAPH", ""), os.environ.get("DEVICE", "auto")
        self.model = onnx_textgen.load(place, device=device, threads=threads, prefix_cache=0)

    def generate(self, token_ids, new):
        for chunk in self.model.stream(token_ids, max_new_tokens=new, **self.options):
            yield from chunk.token_ids

    def logits(self, token_ids):
        return self.model.new_context().feed(token_ids, every_position=True)

    def together(self, prompts, new):
        begun = time.perf_counter()
        self.model.generate(prompts, max_new_tokens=new, **self.options)
        return time.perf_counter() - begun


if __name__ == "__main__":
    worker.main(Engine)
