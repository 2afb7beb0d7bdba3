"""Every Python block about serving runs against a live server."""

import gc
import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
BLOCKS = [each for each in BLOCKS if "client.embeddings" not in each]  # needs an embedding model: test_embeddings.py
FIRST = BLOCKS[:2]
"""They belong together; each of the others is a program, for another client."""


def run(block: str, url: str, names: dict) -> None:
    own = block.replace("http://127.0.0.1:8000", url).replace('small"', 'chatty"')
    exec(compile(own, "serving.md", "exec"), names)  # noqa: S102 - our own page


def test_the_blocks_about_completions_run(live: tuple, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance", reason="one of the blocks is about rules")
    names: dict = {}
    for block in FIRST:
        run(block, live[0], names)
    assert '{"age"' in capsys.readouterr().out.replace(" ", "").replace("\n", "")
    names["client"].close()


@pytest.mark.filterwarnings("ignore")  # other projects' warnings
@pytest.mark.parametrize("block", BLOCKS[2:])
def test_every_other_block_runs(
    live: tuple, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # which it would fetch from the net
    for name in ("llguidance", *re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE)):
        pytest.importorskip(name)
    names: dict = {}
    run(block, live[0], names)
    for close in [each.close for each in names.values() if hasattr(each, "close") and not inspect.iscoroutinefunction(each.close)]:
        close()
    names.clear()
    assert capsys.readouterr().out
    gc.collect()
