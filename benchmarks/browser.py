"""A model in a real browser: what a visitor fetches, how long the first and the second visit take, and tokens per second.

    python benchmarks/browser.py PACKAGE... [--tokens 64] [--rounds 3] [--threads N] [--transformers-js DIR]

Needs chromium with its driver, selenium, and npm for the libraries. Sites are served by this machine, so fetching takes next to no
time; a visit ends when *Generate* can be pressed. `--transformers-js`: a folder with `node_modules/@huggingface/transformers`
(`npm install --ignore-scripts --prefix DIR @huggingface/transformers@4.3.1`). It opens the same package too, in turn with the site,
in the same browser, by WebAssembly with as many threads.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from onnx_textgen.hosts import listen
from onnx_textgen.package.hub import locate
from onnx_textgen.web_site.building import build_site
from onnx_textgen.web_site.preview import SiteServer

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PROMPT = "Once upon a time"
LONGEST_WAIT = 600

READY = "const find = (id) => document.getElementById(id); return !find('generate').disabled || find('load-problem').textContent"
PROBLEM = "return document.getElementById('load-problem').textContent"
ASK = "const button = document.getElementById('download'); if (button && !button.hidden) button.click()"
WRITE = """
for (const [id, value] of Object.entries(arguments[0])) document.getElementById(id).value = value;
document.getElementById('generate').click();
"""
DONE = "return document.getElementById('status').textContent.includes('finished')"
SPEED = "return [...document.querySelectorAll('#status b')].map((each) => each.textContent)[2]"
THEIRS = """<!doctype html><meta charset="utf-8"><script type="module">
import { env, pipeline } from "./transformers.js";
env.allowLocalModels = true;
env.allowRemoteModels = false;
env.localModelPath = "./";
env.backends.onnx.wasm.wasmPaths = "./";
env.backends.onnx.wasm.numThreads = THREADS;
try {
  const model = await pipeline("text-generation", "package", { dtype: "auto", device: "wasm" });
  window.write = async (tokens) => {
    const begun = performance.now();
    await model("PROMPT", { max_new_tokens: tokens, min_new_tokens: tokens, do_sample: false });
    return performance.now() - begun;
  };
  window.state = "ready";
} catch (error) {
  window.state = String(error);
}
</script>"""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    (listener,) = listen("127.0.0.1", 0)
    with SiteServer(folder, listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.address
        server.shutdown()


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A new Chromium, which keeps nothing of earlier visits."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = shutil.which("chromium") or ""
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def wait(driver: webdriver.Chrome, condition: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the page returns
    """The first true value of a condition."""
    return WebDriverWait(driver, LONGEST_WAIT, poll_frequency=0.02).until(lambda _: condition())


def visit_seconds(driver: webdriver.Chrome, address: str) -> float:
    """From the request of a site until its model is open."""

    def is_open() -> Any:  # noqa: ANN401
        driver.execute_script(ASK)
        return driver.execute_script(READY)

    begun = time.perf_counter()
    driver.get(address)
    wait(driver, is_open)
    if problem := driver.execute_script(PROBLEM):
        raise SystemExit(f"the site does not open the model: {problem}")
    return time.perf_counter() - begun


def measure_site(site: Path, tokens: int, threads: int | None) -> dict[str, float]:
    """Seconds of a first and a second visit, and tokens per second."""
    with served(site) as address, browser() as driver:
        first = visit_seconds(driver, address)
        second = visit_seconds(driver, address)
        if threads is not None:
            driver.execute_script(
                "const field = document.getElementById('threads'); field.value = arguments[0];"
                "field.dispatchEvent(new Event('change'))",
                threads,
            )
            wait(driver, lambda: driver.execute_script(READY))
        values = {"prompt": PROMPT, "temperature": 0, "max_new_tokens": tokens}
        driver.execute_script(WRITE, values)  # stops the replay of the golden runs, and warms up
        wait(driver, lambda: driver.execute_script(DONE))
        driver.execute_script(WRITE, values)
        wait(driver, lambda: not driver.execute_script(DONE))
        wait(driver, lambda: driver.execute_script(DONE))
        return {"first visit": first, "second visit": second, "tokens/s": float(driver.execute_script(SPEED))}


def measure_theirs(page: Path, tokens: int) -> dict[str, float]:
    """The same by transformers.js: the time of all tokens but the first is that of a text without that of a token."""
    with served(page) as address, browser() as driver:
        seconds = []
        for _ in range(2):
            begun = time.perf_counter()
            driver.get(address)
            state = wait(driver, lambda: driver.execute_script("return window.state"))
            if state != "ready":
                raise SystemExit(f"transformers.js does not open the model: {state}")
            seconds.append(time.perf_counter() - begun)
        driver.set_script_timeout(LONGEST_WAIT)
        write = functools.partial(driver.execute_async_script, "window.write(arguments[0]).then(arguments[1])")
        write(4)
        one, all_of_them = write(1), write(tokens)
        return {
            "first visit": seconds[0],
            "second visit": seconds[1],
            "tokens/s": (tokens - 1) * 1000 / (all_of_them - one),
        }


def make_their_page(package: Path, modules: Path, folder: Path, threads: int) -> None:
    """A page that opens a package with transformers.js."""
    (folder / "package").symlink_to(package.resolve())
    library = modules / "node_modules" / "@huggingface" / "transformers" / "dist"
    (folder / "transformers.js").symlink_to((library / "transformers.min.js").resolve())
    for file in (modules / "node_modules" / "onnxruntime-web" / "dist").glob("ort-wasm-simd-threaded*"):
        (folder / file.name).symlink_to(file.resolve())
    (folder / "index.html").write_text(THEIRS.replace("THREADS", str(threads)).replace("PROMPT", PROMPT), encoding="utf-8")


def print_medians(name: str, rounds: list[dict[str, float]]) -> None:
    """A line with the median of each figure, and its extremes."""
    parts = []
    for key in rounds[0]:
        values = [each[key] for each in rounds]
        unit = "" if key == "tokens/s" else " s"
        parts.append(f"{key} {statistics.median(values):.1f}{unit} ({min(values):.1f} to {max(values):.1f})")
    print(f"  {name}: {', '.join(parts)}", flush=True)


def main() -> None:
    """Measure each package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--transformers-js", type=Path, default=None)
    arguments = parser.parse_args()
    for name in arguments.packages:
        package = locate(name)
        with tempfile.TemporaryDirectory() as temporary:
            built = build_site(package, Path(temporary) / "site")
            graph = json.loads((built.folder / "site.json").read_text(encoding="utf-8"))["graphs"]["wasm"]["graph"]
            print(f"{name}: {graph}, {arguments.tokens} tokens; a visitor fetches {built.visitor_bytes['wasm'] / 1e6:.1f} MB")
            theirs = Path(temporary) / "theirs"
            theirs.mkdir()
            compare = arguments.transformers_js is not None and (package / "config.json").is_file()
            if compare:
                make_their_page(package, arguments.transformers_js, theirs, arguments.threads or 2)
            rounds, their_rounds = [], []
            for _ in range(arguments.rounds):
                rounds.append(measure_site(built.folder, arguments.tokens, arguments.threads))
                if compare:
                    their_rounds.append(measure_theirs(theirs, arguments.tokens))
            print_medians("site", rounds)
            if compare:
                print_medians("transformers.js", their_rounds)
            elif arguments.transformers_js is not None:
                print("  transformers.js: the package has no config.json, so it does not open it")


if __name__ == "__main__":
    main()
