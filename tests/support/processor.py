"""Which processor the tests run on, for what holds on some only."""

import pytest

from onnx_textgen.diagnostics.machine import examine_cpu

needs_avx512 = pytest.mark.skipif(
    "avx512f" not in examine_cpu()[1],
    reason="without AVX-512, OpenVINO's products depend on the number of rows, see docs/engines.md",
)
