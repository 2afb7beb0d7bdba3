"""Memory that was freed goes back to the system."""

import platform

import numpy as np
import pytest

from onnx_textgen.backends.freed_memory import return_freed_memory
from onnx_textgen.machine_limits import number_of
from onnx_textgen_server.pool.model_pool import PROCESS


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library returns it by itself, or never")
def test_memory_below_a_block_that_is_in_use_is_returned() -> None:
    blocks = [np.ones(8192) for _ in range(2000)]
    last = np.ones(8192)
    del blocks
    held = number_of("RssAnon:", PROCESS)
    return_freed_memory()
    assert held - number_of("RssAnon:", PROCESS) > 100_000, "kilobytes, of 128,000"
    assert last[0] == 1
