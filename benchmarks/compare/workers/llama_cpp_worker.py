"""llama.cpp, by its own library's calls (through llama-cpp-python), as its command-line programs use them."""

import ctypes
import time

import worker

ROWS = 8
"""Sequences at once, at most."""


class Engine:
    """See `worker.Engine`."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        import llama_cpp  # noqa: PLC0415 - counts as loading

        self.library, self.threads = llama_cpp, threads
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        self.context = self.open(context, 1)
        self.sampler = llama_cpp.llama_sampler_init_greedy()

    def open(self, length, rows):
        parameters = self.library.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = length, rows
        parameters.n_threads = parameters.n_threads_batch = self.threads
        return self.library.llama_init_from_model(self.model, parameters)

    def decode(self, token_ids):
        array = (ctypes.c_int32 * len(token_ids))(*token_ids)
        if self.library.llama_decode(self.context, self.library.llama_batch_get_one(array, len(token_ids))):
            raise RuntimeError("llama_decode failed")
        return self.library.llama_sampler_sample(self.sampler, self.context, -1)

    def generate(self, token_ids, new):
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), False)
        size = 512  # what one batch takes by default
        for start in range(0, len(token_ids), size):
            token = self.decode(token_ids[start : start + size])
        yield token
        for _ in range(new - 1):
            token = self.decode([token])
            yield token

    def logits(self, token_ids):
        import numpy as np  # noqa: PLC0415

        library, size = self.library, 512
        library.llama_memory_clear(library.llama_get_memory(self.context), False)
        vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        batch, rows = library.llama_batch_init(size, 0, 1), []
        for start in range(0, len(token_ids), size):
            batch.n_tokens = 0
            for position, token in enumerate(token_ids[start : start + size], start):
                self.add(batch, token, position, row=0, wanted=True)
            if library.llama_decode(self.context, batch):
                raise RuntimeError("llama_decode failed")
            found = library.llama_get_logits(self.context)
            rows.append(np.ctypeslib.as_array(found, shape=(batch.n_tokens, vocabulary)).copy())
        library.llama_batch_free(batch)
        return np.concatenate(rows)

    def add(self, batch, token, position, *, row, wanted):
        index = batch.n_tokens
        batch.token[index], batch.pos[index], batch.logits[index] = token, position, wanted
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
        batch.n_tokens += 1

    def together(self, prompts, new):
        library, rows = self.library, len(prompts)
        context = self.open(rows * (len(prompts[0]) + new), rows)
        batch = library.llama_batch_init(max(512, rows), 0, rows)
        begun, tokens = time.perf_counter(), list(prompts)
        position = 0
        for _ in range(new):
            pieces = [(row, ids if isinstance(ids, list) else [ids]) for row, ids in enumerate(tokens)]
            batch.n_tokens, last = 0, []
            for row, ids in pieces:
                for offset, token in enumerate(ids):
                    self.add(batch, token, position + offset, row=row, wanted=offset == len(ids) - 1)
                last.append(batch.n_tokens - 1)
            if library.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            position += len(pieces[0][1])
            tokens = [library.llama_sampler_sample(self.sampler, context, index) for index in last]
        seconds = time.perf_counter() - begun
        library.llama_batch_free(batch)
        library.llama_free(context)
        return seconds


if __name__ == "__main__":
    worker.main(Engine)
