"""Every Python block about the web page runs against a live page."""

import re
from pathlib import Path

import onnx_textgen

PAGE = Path(__file__).parents[2] / "docs" / "web_page.md"


def test_every_block_about_the_web_page_runs(served):
    model = onnx_textgen.load()
    address = served(model)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    names: dict = {}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:7860", address), "web_page.md", "exec"), names)  # noqa: S102 - our own page
    expected = model.generate("Once upon a time", max_new_tokens=40, temperature=0.7, seed=7)
    assert names["answer"]["text"] == expected.text
    names["client"].close()
