"""Which processor the tests run on, for what holds on some only."""

import contextlib
from collections.abc import Iterator

import pytest

from onnx_textgen.backends import kernels
from onnx_textgen.diagnostics.machine import examine_cpu

FEATURES = examine_cpu()[1]
HAS_VNNI = any("vnni" in name for name in FEATURES)
"""Without it, ONNX Runtime rounds the sums of 8-bit products in another way than on the processors that made the packages here."""
needs_vnni = pytest.mark.skipif(not HAS_VNNI, reason="without VNNI, 8-bit products round in another way than where it was made")
needs_avx512 = pytest.mark.skipif(
    "avx512f" not in FEATURES, reason="without AVX-512, OpenVINO's products depend on the number of rows, see docs/engines.md"
)


@contextlib.contextmanager
def products_by_onnx_runtime() -> Iterator[None]:
    """Open models in the body with ONNX Runtime's own kernels for all products, as other runtimes have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "instructions", lambda: None)
        yield
