"""The page of the tiny model in a process of its own; run by `test_page`. Prints its port."""

import sys
from pathlib import Path

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_demo.app import make_page
from onnx_textgen_demo.models import ModelRegistry
from onnx_textgen_demo.serving.server import serve

PACKAGE = Path(__file__).parents[1] / "packages" / "ort"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def main() -> None:
    """Serve until the process is ended."""
    plain = onnx_textgen.load(PACKAGE, threads=1, device="cpu")
    chatty = Model(plain.folder, plain.manifest, plain.graph, chat_template=TEMPLATE)
    served = serve(make_page(ModelRegistry({"tiny": lambda: chatty})), host="127.0.0.1", port=0)
    print(served.address.rstrip("/").rpartition(":")[2], flush=True)
    sys.stdin.read()  # until the process that asks has ended, whatever ended it


if __name__ == "__main__":
    main()
