"""`python quantize_gguf.py IN.gguf OUT.gguf Q4_0|Q8_0`: what llama.cpp's own command does, through its library."""

import ctypes
import sys

import llama_cpp

TYPES = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}

source, target, kind = sys.argv[1:]
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype = TYPES[kind]
if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
    sys.exit(f"llama.cpp could not quantise {source}")
