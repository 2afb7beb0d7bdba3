"""`python quantize_gguf.py IN.gguf OUT.gguf Q4_0|Q4_K_M|... [IMPORTANCE.npz]`: what llama.cpp's own command does, by its library.

The importance matrix holds, by tensor, the mean square of each input channel.
"""

import ctypes
import sys

import llama_cpp
import numpy as np


def importance_entries(arrays: dict[str, np.ndarray]) -> ctypes.Array:
    """The matrix as the library takes it, an entry without a name at its end; `arrays` must outlive what is returned."""
    entries = (llama_cpp.llama_model_imatrix_data * (len(arrays) + 1))()
    for entry, (name, values) in zip(entries, arrays.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries


def main(source: str, target: str, kind: str, importance: str = "") -> None:
    """Write the file."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    arrays = dict(np.load(importance)) if importance else {}  # float32, held until the file is written
    if arrays:
        parameters.imatrix = importance_entries(arrays)
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
        sys.exit(f"llama.cpp could not quantise {source}")


if __name__ == "__main__":
    main(*sys.argv[1:])
