"""Run everything that a GPU has to show, on what `prepare.py` made; no network, at most eight minutes.

    PYTHONPATH=runtime:export:KIT/site python benchmarks/gpu/run.py --kit KIT --out DIR [--device cpu] [--only graphs,speed]

Each section is a process of its own with a limit of time, and writes its lines to DIR/results.jsonl as they come: one that fails
ends nothing else. `--device cpu` is a rehearsal. References: the same package on the CPU, transformers in float32 on the same
weights, and onnxruntime-genai's loop over the same package.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

GGUF = "smollm2.gguf"
MADE_BEFORE, MADE_HERE = "int4", "fp16"
"""The trained model's packages: the larger one is exported here, while the other is measured."""
COMMAND = "from onnx_textgen.cli import main; main()"
BATCHES, LENGTHS, NEW = (1, 8, 32), (128, 512, 2048, 7168), 64
GREEDY = {"temperature": 0, "loop_guard": "off", "ignore_eos": True}
TEXTS = ("README.md", "docs/serving.md", "runtime/onnx_textgen/api/loading.py")
WINDOW = 512
Line = dict[str, Any]
Logits = npt.NDArray[np.float32]


def ids_of(count: int, vocabulary: int, start: int = 0) -> list[int]:
    """Token ids without a meaning."""
    return [3 + (37 * place + 11 * (place // 5)) % (vocabulary - 4) for place in range(start, start + count)]


def divergence(reference: Logits, found: Logits) -> Line:
    """KL(reference || found) in nats per token and the share of equal best tokens; logits are [positions, vocabulary]."""
    import torch  # noqa: PLC0415 - slow to import

    want, got = (torch.log_softmax(torch.as_tensor(each).double(), -1) for each in (reference, found))
    kl = (want.exp() * (want - got)).sum(-1)
    return {
        "kl": float(kl.mean()),
        "kl_99": float(kl.quantile(0.99)),
        "same_top": float((want.argmax(-1) == got.argmax(-1)).float().mean()),
    }


def common(one: Sequence[int], other: Sequence[int]) -> str:
    """How many tokens two texts have in common, of how many."""
    place = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"{place}/{max(len(one), len(other))}"


def gpu_bytes() -> int:
    """MB of the GPU in use, by everyone."""
    query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError):
        return 0


def machine(asked: argparse.Namespace) -> Iterator[Line]:
    """What this machine is, and what `doctor` says of it."""
    yield {"python": sys.version.split()[0], "smi": output(["nvidia-smi", "-L"])}
    yield {"doctor": output([sys.executable, "-c", COMMAND, "doctor"])}


def output(command: list[str]) -> str:
    """What a program prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except OSError as error:
        return str(error)
    return (done.stdout + done.stderr).strip()


def export_fp16(asked: argparse.Namespace) -> Iterator[Line]:
    """The package of the trained model that is too large to carry."""
    begun, out = time.perf_counter(), asked.kit / "made" / MADE_HERE
    command = [
        sys.executable,
        "-c",
        COMMAND,
        "export",
        str(asked.kit / GGUF),
        "--out",
        str(out),
        "--force",
        "--precision",
        MADE_HERE,
    ]
    said = output(command)
    yield {"export": MADE_HERE, "seconds": time.perf_counter() - begun, "said": said.splitlines()[-3:]}


def graphs(asked: argparse.Namespace) -> Iterator[Line]:
    """Every kind of graph on the device beside the CPU, each in its own process."""
    folders = sorted(path for path in (asked.kit / "packages").iterdir() if path.is_dir())

    def one(folder: Path) -> Line:
        command = [sys.executable, __file__, "--kit", str(asked.kit), "--out", str(asked.out), "--device", asked.device]
        said = output([*command, "--graph", str(folder)])
        line = next((line for line in said.splitlines() if line.startswith("{")), None)
        return {"graph": folder.name, "error": said[-600:]} if line is None else json.loads(line)

    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        yield from pool.map(one, folders)


def graph(folder: Path, device: str) -> Line:
    """One package: logits, greedy texts, batches, a reused beginning."""
    import onnx_textgen  # noqa: PLC0415 - counts as a section's own time

    there, here = onnx_textgen.load(folder, device=device), onnx_textgen.load(folder, device="cpu")
    size = here.manifest.geometry.vocab_size
    prompts = [ids_of(40, size), ids_of(25, size, 5), ids_of(70, size, 100)]
    alone = [list(there.generate(ids, max_new_tokens=32, **GREEDY).token_ids) for ids in prompts]
    found: Line = {"graph": folder.name, "device": there.device}
    if here.manifest.encoder is None:
        ids = ids_of(180, size)
        parts = [there.new_context() for _ in range(2)]
        whole = parts[0].feed(ids, every_position=True)
        stepped = np.concatenate(
            [parts[1].feed(ids[:100], every_position=True), *(parts[1].feed([each])[-1:] for each in ids[100:])]
        )
        found |= divergence(here.new_context().feed(ids, every_position=True), whole)
        found["kl_of_steps"] = divergence(whole, stepped)["kl"]
    texts = [list(here.generate(each, max_new_tokens=32, **GREEDY).token_ids) for each in prompts]
    together = [list(each.token_ids) for each in there.generate(prompts, max_new_tokens=32, **GREEDY)]
    again = there.generate([*prompts[2], 7, 8, 9], max_new_tokens=4, **GREEDY)
    found |= {
        "as_cpu": [common(a, b) for a, b in zip(alone, texts, strict=True)],
        "batch_as_alone": [common(a, b) for a, b in zip(together, alone, strict=True)],
        "reused": again.stats.reused_tokens,
    }
    return found


def trained(asked: argparse.Namespace) -> list[Path]:
    """The packages of the trained model that this section is for."""
    return [folder for name in asked.packages.split(",") if (folder := asked.kit / "made" / name).is_dir()]


def quality(asked: argparse.Namespace) -> Iterator[Line]:
    """How far each package on the device, and on the CPU, is from transformers in float32."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    import onnx_textgen  # noqa: PLC0415

    place = "cuda" if asked.device == "cuda" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    peer = transformers.AutoModelForCausalLM.from_pretrained(asked.kit, gguf_file=GGUF, dtype=torch.float32).eval().to(place)
    root = Path(__file__).resolve().parents[2]
    for folder in trained(asked):
        there, here = onnx_textgen.load(folder, device=asked.device), onnx_textgen.load(folder, device="cpu")
        for name in TEXTS:
            ids = here.tokenizer.encode((root / name).read_text(encoding="utf-8"))[:WINDOW]
            with torch.inference_mode():
                want = peer(input_ids=torch.tensor([ids], device=place)).logits[0].float().cpu().numpy()
            for device, model in (asked.device, there), ("cpu", here):
                got = model.new_context().feed(ids, every_position=True)[:, : want.shape[1]]
                yield {"package": folder.name, "text": name, "on": device} | divergence(want, got)
        prompts = [
            here.encode_chat([{"role": "user", "content": text}])
            for text in ("What is the capital of Italy?", "Name three fruits.")
        ]
        for ids in prompts:
            texts = [model.generate(ids, max_new_tokens=48, temperature=0) for model in (there, here)]
            yield {"package": folder.name, "as_cpu": common(texts[0].token_ids, texts[1].token_ids), "text": texts[0].text}


def ours(folder: Path, device: str) -> Callable[[list[list[int]], int], None]:
    """Our runtime: generates so many tokens behind each prompt."""
    import onnx_textgen  # noqa: PLC0415

    model = onnx_textgen.load(folder, device=device, prefix_cache=0, batch_size=max(BATCHES))
    return lambda prompts, new: void(model.generate(prompts if len(prompts) > 1 else prompts[0], max_new_tokens=new, **GREEDY))


def void(_: object) -> None:
    """Drop a result."""


def transformers_of(asked: argparse.Namespace) -> Callable[[list[list[int]], int], None]:
    """transformers, float16 on a GPU, with its own `generate`."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    place, dtype = ("cuda", torch.float16) if asked.device == "cuda" else ("cpu", torch.float32)
    model = transformers.AutoModelForCausalLM.from_pretrained(asked.kit, gguf_file=GGUF, dtype=dtype).eval().to(place)

    def run(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts, device=place)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=new, max_new_tokens=new, pad_token_id=0
        )

    return run


def genai_of(folder: Path, device: str) -> Callable[[list[list[int]], int], None]:
    """onnxruntime-genai's generator loop over our package."""
    import onnxruntime_genai as genai  # noqa: PLC0415

    config = genai.Config(str(folder))
    config.clear_providers()
    if device == "cuda":
        config.append_provider("cuda")
    model = genai.Model(config)

    def run(prompts: list[list[int]], new: int) -> None:
        settings, length = genai.GeneratorParams(model), len(prompts[0]) + new
        settings.set_search_options(batch_size=len(prompts), max_length=length, min_length=length, do_sample=False)
        generator = genai.Generator(model, settings)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(new):
            generator.generate_next_token()

    return run


def timed(run: Callable[[list[list[int]], int], None], prompts: list[list[int]], new: int) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    run(prompts, new)
    return time.perf_counter() - begun


def speed(asked: argparse.Namespace) -> Iterator[Line]:
    """Prefill of one text, and decode of batches; medians of three after one that does not count."""
    makers: dict[str, Callable[[], Callable[[list[list[int]], int], None]]] = {}
    for folder in trained(asked):
        makers[f"onnx-textgen {folder.name}"] = lambda folder=folder: ours(folder, asked.device)
        makers[f"genai {folder.name}"] = lambda folder=folder: genai_of(folder, asked.device)
    if MADE_HERE in asked.packages:
        makers["transformers"] = lambda: transformers_of(asked)
    for name, make in makers.items():
        try:
            before = gpu_bytes()
            run = make()
            loaded = gpu_bytes()
            for length in LENGTHS if asked.device != "cpu" else LENGTHS[:2]:
                prompt = [ids_of(length, 40_000)]
                timed(run, prompt, 1)
                seconds = statistics.median(timed(run, prompt, 1) for _ in range(3))
                yield {"engine": name, "prefill": length, "tokens_per_second": length / seconds}
            for rows in BATCHES:
                prompts = [ids_of(128, 40_000, 1000 * row) for row in range(rows)]
                timed(run, prompts, 2)
                new = NEW if asked.device != "cpu" else 8
                rates = [(new - 1) * rows / (timed(run, prompts, new) - timed(run, prompts, 1)) for _ in range(3)]
                yield {"engine": name, "decode": rows, "tokens_per_second": statistics.median(rates)}
            yield {"engine": name, "gpu_mb": [before, loaded, gpu_bytes()]}
            del run
        except Exception as error:  # noqa: BLE001 - the others go on
            yield {"engine": name, "error": f"{type(error).__name__}: {error}"[:600]}


def steps(asked: argparse.Namespace) -> Iterator[Line]:
    """What a single decode step takes in our runtime, and in ONNX Runtime alone; prefill by the size of its parts."""
    import dataclasses  # noqa: PLC0415

    import onnx_textgen  # noqa: PLC0415
    from onnx_textgen.inference.decoder import Decoder  # noqa: PLC0415

    for folder in trained(asked):
        model = onnx_textgen.load(folder, device=asked.device)
        decoder = model.new_context()
        decoder.feed(ids_of(128, 40_000))
        times = []
        for step in range(40):
            begun = time.perf_counter()
            decoder.feed([step + 5])
            times.append(time.perf_counter() - begun)
        yield {"package": folder.name, "feed_ms": 1e3 * statistics.median(times)}
        for part in (128, 512, 2048, 4096):
            graph = dataclasses.replace(model.graph, most_tokens=part)
            context = Decoder(graph, model.manifest.geometry)
            rates = []
            for _ in range(3):
                context.rewind(0)
                begun = time.perf_counter()
                ids = ids_of(4096, 40_000)
                for start in range(0, len(ids), part):
                    context.feed(ids[start : start + part])
                rates.append(len(ids) / (time.perf_counter() - begun))
            yield {"package": folder.name, "part": part, "prefill_tokens_per_second": max(rates)}


def cancel(asked: argparse.Namespace) -> Iterator[Line]:
    """How soon a cancelled call ends, in a prompt and in a text, and that the model works afterwards."""
    import onnx_textgen  # noqa: PLC0415

    for folder in trained(asked):
        model = onnx_textgen.load(folder, device=asked.device, prefix_cache=0)
        text = model.generate(ids_of(64, 40_000), max_new_tokens=8, **GREEDY).token_ids
        for what, count, after in ("prompt", 7900, 0.02), ("text", 64, 0.2):
            stop, at = onnx_textgen.Cancellation(), []

            def later(stop: onnx_textgen.Cancellation = stop, at: list[float] = at) -> None:
                at.append(time.perf_counter())
                stop.cancel()

            timer = threading.Timer(after, later)
            timer.start()
            done = model.generate(ids_of(count, 40_000), max_new_tokens=200, cancel=stop, **GREEDY)
            late = time.perf_counter() - at[0] if at else -1
            timer.cancel()
            same = model.generate(ids_of(64, 40_000), max_new_tokens=8, **GREEDY).token_ids == text
            yield {"package": folder.name, "in": what, "late_ms": 1e3 * late, "finish": done.finish_reason, "works_after": same}


def server(asked: argparse.Namespace) -> Iterator[Line]:
    """Chat completions over HTTP, 1, 8 and 32 at a time."""
    folder, port, name = trained(asked)[0], 8765, ""
    command = [sys.executable, "-c", COMMAND, "serve", str(folder), "--device", asked.device, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    body = {"model": "x", "messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 100, "ignore_eos": True}
    address = f"http://127.0.0.1:{port}/v1"

    def ask(number: int) -> int:
        data = json.dumps(body | {"seed": number}).encode()
        request = urllib.request.Request(f"{address}/chat/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["usage"]["completion_tokens"]

    try:
        for _ in range(300):
            try:
                name = json.load(urllib.request.urlopen(f"{address}/models", timeout=5))["data"][0]["id"]
                break
            except OSError:
                time.sleep(0.2)
        body["model"] = name
        ask(0)
        for clients in BATCHES:
            begun = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                tokens = sum(pool.map(ask, range(clients)))
            yield {"clients": clients, "tokens_per_second": tokens / (time.perf_counter() - begun)}
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=30)
        yield {"server": said[-800:]}


SECTIONS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Line]], int]] = {
    "machine": (machine, 60),
    "export": (export_fp16, 240),
    "graphs": (graphs, 90),
    "quality": (quality, 60),
    "steps": (steps, 40),
    "speed": (speed, 100),
    "cancel": (cancel, 30),
    "server": (server, 50),
}
"""With the most seconds of each."""
OF_A_PACKAGE = ("quality", "steps", "speed", "cancel", "server")


def main() -> None:
    """Run the sections, or one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=max(2, (os.cpu_count() or 2) // 3))
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--packages", default=f"{MADE_BEFORE},{MADE_HERE}", help=argparse.SUPPRESS)
    parser.add_argument("--graph", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.graph:
        print(json.dumps(graph(asked.graph, asked.device)))
        return
    if asked.section:
        for line in SECTIONS[asked.section][0](asked):
            text = json.dumps({"section": asked.section} | line)
            with (asked.out / "results.jsonl").open("a") as file:
                file.write(text + "\n")
            print(text, flush=True)
        return
    names = [name for name in SECTIONS if name in asked.only.split(",")]
    with concurrent.futures.ThreadPoolExecutor(1) as aside:
        exported = aside.submit(in_process, "export", asked) if "export" in names else None
        for name in (each for each in names if each != "export"):
            in_process(name, asked, MADE_BEFORE)
        if exported is not None:
            exported.result()
        for name in (each for each in names if each in OF_A_PACKAGE):
            in_process(name, asked, MADE_HERE)


def in_process(name: str, asked: argparse.Namespace, packages: str = "") -> None:
    """Run a section for some packages; say how it failed, if it did."""
    command = [sys.executable, __file__, "--kit", str(asked.kit), "--out", str(asked.out), "--device", asked.device]
    command += ["--jobs", str(asked.jobs), "--section", name, "--packages", packages]
    begun = time.perf_counter()
    try:
        code = subprocess.run(command, check=False, timeout=SECTIONS[name][1]).returncode
    except subprocess.TimeoutExpired:
        code = "out of time"
    print(f"== {name} {packages}: {code}, {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
