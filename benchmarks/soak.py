"""A long run of mixed requests from many threads: whether memory, files and threads stay flat, and texts stay right.

    python benchmarks/soak.py [PACKAGE] [--requests 1000] [--callers 32] [--cancels 1000]

Requests differ in prompt, settings and form (streams, lists, beams, sessions, scores, asyncio); some are cancelled at any moment.
A fixed set of texts, written down before, is asked for in between and must come out the same; ends with 1 where it does not.
Linux only, as it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from pathlib import Path

import onnx_textgen

TEXT = "the little dog and a big red ball went to park with Lily because Tom was sad that rain came over the house"
WORDS = TEXT.split()
FIXED = ["Once upon a time", "The dog ran", "Lily and Tom", "It was dark and"]


def usage() -> tuple[float, int, int]:
    """Resident MiB, open files, threads."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


class Soak:
    """The requests, and what became of them."""

    def __init__(self, model: onnx_textgen.Model, requests: int, cancels: int) -> None:
        self.model, self.requests, self.cancels = model, requests, cancels
        self.fixed = [model.generate(prompt, max_new_tokens=24, seed=7).text for prompt in FIXED]
        self.done = self.tokens = self.cancelled = 0
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def work(self, seed: int) -> None:
        """One caller's requests, until all callers together have made enough."""
        chance = random.Random(seed)
        while True:
            with self.lock:
                if self.done >= self.requests:
                    return
                self.done += 1
                number = self.done
                cancels, self.cancels = self.cancels > 0 and chance.random() < 0.5, self.cancels
            try:
                tokens = self.cancel(chance) if cancels else self.ask(number, chance)
            except Exception as error:  # noqa: BLE001 - every failure is a finding
                self.wrong.append(f"{type(error).__name__}: {error}")
                continue
            with self.lock:
                self.tokens += tokens

    def ask(self, number: int, chance: random.Random) -> int:
        """One request of some form; the number of its tokens."""
        model, prompt = self.model, " ".join(chance.choices(WORDS, k=chance.randint(1, 120)))
        options = {"max_new_tokens": chance.randint(1, 200), "seed": number}
        form = number % 8
        if form == 0:
            which = number // 8 % len(FIXED)
            text = model.generate(FIXED[which], max_new_tokens=24, seed=7).text
            if text != self.fixed[which]:
                self.wrong.append(f"{FIXED[which]!r} went on as {text!r}")
            return 24
        if form == 1:
            return len(model.score(prompt + " and").logprobs)
        if form == 2:
            return sum(len(each.token_ids) for each in model.generate([prompt, "Tom"], **options))  # type: ignore[arg-type]
        if form == 3:
            return len(model.generate(prompt, num_beams=3, max_new_tokens=12).token_ids)
        if form == 4:
            session = model.session()
            session.append(prompt)
            first = session.generate(max_new_tokens=20, seed=number)
            session.append(" Then")
            return len(first.token_ids) + len(session.fork().generate(max_new_tokens=20, seed=number).token_ids)
        if form == 5:
            return len(asyncio.run(model.agenerate(prompt, **options)).token_ids)  # type: ignore[arg-type]
        return sum(len(chunk.token_ids) for chunk in model.stream(prompt, top_p=0.9, **options))  # type: ignore[arg-type]

    def cancel(self, chance: random.Random) -> int:
        """One request that is cancelled at a random moment."""
        cancel = onnx_textgen.Cancellation()
        timer = threading.Timer(chance.uniform(0, 0.2), cancel.cancel)
        timer.start()
        found = self.model.generate(" ".join(chance.choices(WORDS, k=200)), max_new_tokens=150, ignore_eos=True, cancel=cancel)
        timer.join()
        with self.lock:
            self.cancels -= 1
            self.cancelled += found.finish_reason == "cancelled"
        return len(found.token_ids)


def main() -> int:
    """Print a line for each tenth of the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="story")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--cancels", type=int, default=1000)
    arguments = parser.parse_args()
    model = onnx_textgen.load(arguments.package, device="cpu", threads=2, prefix_cache=32 * 2**20)
    soak = Soak(model, arguments.requests, arguments.cancels)
    callers = [threading.Thread(target=soak.work, args=(seed,)) for seed in range(arguments.callers)]
    start, told = time.monotonic(), 0
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        time.sleep(0.2)
        if soak.done * 10 // arguments.requests > told:
            told = soak.done * 10 // arguments.requests
            memory, files, threads = usage()
            print(
                f"{soak.done:6,} requests {soak.tokens:8,} tokens {memory:7.1f} MiB {files:3} files {threads:3} threads", flush=True
            )
    memory, files, threads = usage()
    seconds = time.monotonic() - start
    print(
        f"{soak.done:,} requests, {soak.tokens:,} tokens, {soak.cancelled:,} cancelled in {seconds:.0f} s; "
        f"at the end {memory:.1f} MiB, {files} files, {threads} threads; {len(soak.wrong)} wrong"
    )
    for line in sorted(set(soak.wrong))[:10]:
        print(f"  {line}")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
