"""OpenVINO GenAI, by its pipeline; times of single tokens are those that the pipeline itself keeps."""

import os
import time
from pathlib import Path

import worker


class Engine:
    """See `worker.Engine`."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import numpy as np  # noqa: PLC0415 - counts as loading
        import openvino  # noqa: PLC0415
        import openvino_genai  # noqa: PLC0415

        self.numpy, self.openvino, self.genai, self.path, self.threads = np, openvino, openvino_genai, model, threads
        self.properties = {"INFERENCE_NUM_THREADS": threads}
        if "INFERENCE_PRECISION" in os.environ:
            self.properties["INFERENCE_PRECISION_HINT"] = os.environ["INFERENCE_PRECISION"]
        self.pipeline = openvino_genai.LLMPipeline(model, "CPU", ATTENTION_BACKEND="SDPA", **self.properties)
        self.batches = self.plain = None

    def options(self, new):
        options = self.genai.GenerationConfig()
        options.max_new_tokens, options.min_new_tokens, options.ignore_eos, options.do_sample = new, new, True, False
        return options

    def inputs(self, token_ids):
        ids = self.numpy.array([token_ids], dtype=self.numpy.int64)
        return self.genai.TokenizedInputs(self.openvino.Tensor(ids), self.openvino.Tensor(self.numpy.ones_like(ids)))

    def generate(self, token_ids, new):
        """Tokens come all at once; `worker.timed` is replaced below."""
        result = self.pipeline.generate(self.inputs(token_ids), self.options(new))
        self.times = result.perf_metrics.raw_metrics
        yield from result.tokens[0]

    def logits(self, token_ids):
        """By OpenVINO itself: the pipeline keeps only the logits of the last position."""
        if self.plain is None:
            model = self.openvino.Core().compile_model(Path(self.path, "openvino_model.xml"), "CPU", self.properties)
            self.plain = model.create_infer_request()
        self.plain.reset_state()
        length = len(token_ids)
        inputs = {
            "input_ids": self.numpy.array([token_ids], dtype=self.numpy.int64),
            "attention_mask": self.numpy.ones((1, length), dtype=self.numpy.int64),
            "position_ids": self.numpy.arange(length, dtype=self.numpy.int64)[None],
            "beam_idx": self.numpy.zeros(1, dtype=self.numpy.int32),
        }
        names = {name for port in self.plain.model_inputs for name in port.names}
        self.plain.infer({name: value for name, value in inputs.items() if name in names})
        return self.plain.get_tensor("logits").data[0].copy()

    def together(self, prompts, new):
        if self.batches is None:
            scheduler = self.genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            self.batches = self.genai.ContinuousBatchingPipeline(
                self.path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": self.threads}
            )
        ids = [self.openvino.Tensor(self.numpy.array([prompt], dtype=self.numpy.int64)) for prompt in prompts]
        begun = time.perf_counter()
        self.batches.generate(ids, [self.options(new)] * len(prompts))
        return time.perf_counter() - begun


def timed(engine, token_ids, new):
    """As `worker.timed`, by the pipeline's own clock."""
    tokens = list(engine.generate(token_ids, new))
    raw = engine.times
    return {
        "prefill": raw.m_times_to_first_token[0] / 1e6,
        "steps": [duration / 1e6 for duration in raw.m_durations[1 - new :]],
        "tokens": tokens,
    }


if __name__ == "__main__":
    worker.timed = timed
    worker.main(Engine)
