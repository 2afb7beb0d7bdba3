"""WebGPU's plug-in on a GPU that is simulated on the CPU, by the SwiftShader that comes with Chromium: the tokens are the CPU's.

In a separate process, as the libraries are found by variables that the dynamic linker reads when a process starts.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen.package.locate import embedded_packages
from support.costs import by_cost

PACKAGES = Path(__file__).parents[2] / "packages"
CHROMIUM = Path("/usr/lib/chromium")
DRIVER = CHROMIUM / "vk_swiftshader_icd.json"
SIMULATED = {
    "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
    "LD_LIBRARY_PATH": str(CHROMIUM),  # which has Vulkan's loader
    "VK_ICD_FILENAMES": str(DRIVER),
}
PROMPT, SCORED = "Once upon a time", "Once upon a time there was a dog, and it ran after a cat"
WRITE = """
import json, sys
import onnx_textgen
model = onnx_textgen.load(sys.argv[1], device="webgpu", threads=1)
tokens = model.generate(sys.argv[2], max_new_tokens=int(sys.argv[3]), temperature=0).token_ids
session = model.session()
session.append(sys.argv[2])
fork = session.fork()
forked = [each.generate(max_new_tokens=4, temperature=0).token_ids for each in (session, fork)]
print(json.dumps({"device": model.device, "tokens": tokens, "forked": forked, "scores": model.score(sys.argv[4]).logprobs}))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("onnxruntime_ep_webgpu") is None, reason="needs pip install onnxruntime-ep-webgpu"),
    pytest.mark.skipif(not DRIVER.is_file(), reason="needs the SwiftShader that comes with Chromium"),
]


def on_webgpu(*arguments: str, code: str = WRITE) -> subprocess.CompletedProcess[str]:
    """Run Python with the simulated GPU."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=os.environ | SIMULATED, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize(
    ("package", "count", "tolerance"),
    by_cost(
        [(PACKAGES / "ort", 80, 1e-4)],  # float32; its cache grows on the way
        rare=[(embedded_packages()["tiny-transformer"], 12, 1.0)],  # 8 bits, whose shaders a simulated GPU makes in a minute
    ),
)
def test_text_forks_and_scores_are_those_of_the_cpu(package: Path, count: int, tolerance: float) -> None:
    done = on_webgpu(str(package), PROMPT, str(count), SCORED)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    cpu = onnx_textgen.load(package, device="cpu", threads=1)
    wanted = list(cpu.generate(PROMPT, max_new_tokens=count, temperature=0).token_ids)
    assert found["device"] == "webgpu"
    assert found["tokens"] == wanted
    assert found["forked"] == [wanted[:4], wanted[:4]]
    assert found["scores"] == pytest.approx(cpu.score(SCORED).logprobs, abs=tolerance)


def test_a_package_of_the_standard_is_refused_because_its_attention_has_no_kernel() -> None:
    done = on_webgpu(str(PACKAGES / "standard"), PROMPT, "1", SCORED)
    assert "does not suit webgpu: Attention over float32 has no kernel there" in done.stderr.splitlines()[-1]
    assert "export it with --target ort, or use the device cpu" in done.stderr.splitlines()[-1]


def test_doctor_says_what_it_finds() -> None:
    code = "from onnx_textgen.diagnostics.devices import PLUGINS, examine_plugin; print(examine_plugin(PLUGINS['webgpu']))"
    done = on_webgpu(code=code)
    assert done.stdout.startswith("onnxruntime-ep-webgpu") and "runs packages of target ort" in done.stdout, done
