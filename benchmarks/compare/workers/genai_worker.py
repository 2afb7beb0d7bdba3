"""onnxruntime-genai, by its generator loop."""

import json
import time
from pathlib import Path

import worker


class Engine:
    """See `worker.Engine`."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import onnxruntime_genai  # noqa: PLC0415 - counts as loading

        self.genai, self.context = onnxruntime_genai, context
        path = Path(model, "genai_config.json")
        config = json.loads(path.read_text())
        config["model"]["decoder"].setdefault("session_options", {})["intra_op_num_threads"] = threads
        path.write_text(json.dumps(config, indent=4))
        self.model = onnxruntime_genai.Model(model)

    def generator(self, rows, length):
        parameters = self.genai.GeneratorParams(self.model)
        # an end of text must not end a measurement; room is asked for as what is needed, which is this peer's best case
        parameters.set_search_options(batch_size=rows, max_length=length, min_length=length, do_sample=False)
        return self.genai.Generator(self.model, parameters)

    def generate(self, token_ids, new):
        generator = self.generator(1, len(token_ids) + new)
        generator.append_tokens(list(token_ids))
        for _ in range(new):
            generator.generate_next_token()
            yield generator.get_next_tokens()[0]

    def logits(self, token_ids):
        generator = self.generator(1, len(token_ids) + 1)
        generator.append_tokens(list(token_ids))
        return generator.get_output("logits")[0]

    def together(self, prompts, new):
        begun = time.perf_counter()
        generator = self.generator(len(prompts), len(prompts[0]) + new)
        import numpy as np  # noqa: PLC0415

        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(new):
            generator.generate_next_token()
            generator.get_next_tokens()
        return time.perf_counter() - begun


if __name__ == "__main__":
    worker.main(Engine)
