"""transformers in float32 or bfloat16, by the model's own forward call and cache."""

import inspect
import os

import worker


class Engine:
    """See `worker.Engine`."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import torch  # noqa: PLC0415 - counts as loading
        import transformers  # noqa: PLC0415

        self.torch = torch
        torch.set_num_threads(threads)
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[os.environ["PRECISION"]]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        named = inspect.signature(self.model.forward).parameters
        self.cache = "cache" if "cache" in named else "past_key_values"  # transformers 5.24 renamed it

    def generate(self, token_ids, new):
        ids, past = self.torch.tensor([token_ids]), None
        with self.torch.inference_mode():
            for step in range(new):
                mask = self.torch.ones(1, len(token_ids) + step, dtype=self.torch.int64)
                out = self.model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1, **{self.cache: past})
                past = out[self.cache]
                ids = out.logits[:, -1:].argmax(-1)
                yield int(ids)

    def logits(self, token_ids):
        with self.torch.inference_mode():
            return self.model(input_ids=self.torch.tensor([token_ids])).logits[0].float().numpy()


if __name__ == "__main__":
    worker.main(Engine)
