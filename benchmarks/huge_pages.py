"""What weights in huge pages give, and what gathering them takes: a token's time behind a prompt, and the prompt's.

    python benchmarks/huge_pages.py PACKAGE [--threads 2] [--rounds 7]

Where in memory weights lie differs from process to process and stays so: every round has new processes, one with and one without.
The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time

PROMPT, NEW_TOKENS, TEXTS = 128, 48, 4


def measure(package: str, threads: int, *, are_huge: bool) -> None:
    """Print the medians of some texts: seconds of the prompt and of each token."""
    from onnx_textgen.api import loading  # noqa: PLC0415 - not in the process that starts the others
    from onnx_textgen.backends import huge_pages  # noqa: PLC0415 - not in the process that starts the others

    collapse, seconds = huge_pages.collapse, 0.0

    def timed(regions: list[huge_pages.Region]) -> None:
        nonlocal seconds
        begun = time.perf_counter()
        collapse(regions)
        seconds = time.perf_counter() - begun

    huge_pages.collapse = timed
    if not are_huge:
        os.environ[huge_pages.VARIABLE] = "0"
    model = loading.load(package, device="cpu", threads=threads, prefix_cache=0)
    huge_pages.wait_for_collapse()
    prompts, steps = [], []
    for seed in range(TEXTS + 1):
        draw = random.Random(seed)
        prompt = [draw.randrange(model.encoder.vocab_size) for _ in range(PROMPT)]
        times = [time.perf_counter()]
        for _ in model.stream(prompt, max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, loop_guard="off"):
            times.append(time.perf_counter())
        if seed:  # the first one warms up
            prompts.append(times[1] - times[0])
            steps += [after - before for before, after in itertools.pairwise(times[1:])]
    print(json.dumps({"prompt": statistics.median(prompts), "token": statistics.median(steps), "gathering": seconds}))


def shown(seconds: list[float]) -> str:
    """Median and range."""
    least, middle, most = (f"{1e3 * each:.2f}" for each in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle} ms ({least} to {most})"


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pages", choices=["huge", "small"], help="measure these in this process, and print it as JSON")
    options = parser.parse_args()
    if options.pages:
        measure(options.package, options.threads, are_huge=options.pages == "huge")
        return
    found: dict[str, list[dict[str, float]]] = {"huge": [], "small": []}
    for turn in range(options.rounds):
        for pages, each in sorted(found.items(), reverse=turn % 2 == 1):
            command = [sys.executable, __file__, options.package, "--threads", str(options.threads), "--pages", pages]
            each.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"gathering {shown([each['gathering'] for each in found['huge']])}, in a thread of its own")
    for part in ("prompt", "token"):
        huge, small = ([each[part] for each in found[pages]] for pages in ("huge", "small"))
        ratio = statistics.median(without / with_them for with_them, without in zip(huge, small, strict=True))
        print(f"{part:6} small pages {shown(small)}, huge pages {shown(huge)}: {ratio:.3f} times as fast")


if __name__ == "__main__":
    main()
