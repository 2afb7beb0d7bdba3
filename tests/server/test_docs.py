"""Every Python block about serving runs against a live server."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_every_block_about_serving_runs(live: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance", reason="one of the blocks is about rules")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [each for each in blocks if "client.embeddings" not in each]  # needs an embedding model: test_embeddings.py
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", live[0]), "serving.md", "exec"), names)  # noqa: S102 - our own page
    assert '{"age"' in capsys.readouterr().out.replace(" ", "").replace("\n", "")
    names["client"].close()
