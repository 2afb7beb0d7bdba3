"""Memory is planned from the graph, and what cannot fit is refused with the numbers."""

from pathlib import Path

import pytest

import onnx_textgen
from onnx_textgen import Model, memory
from onnx_textgen.cli import run
from onnx_textgen.errors import OptionError, PromptError


def test_a_plan_counts_what_the_cache_holds(story: Model) -> None:
    context = story.new_context()
    context.feed(list(range(2, 102)))
    held = context.snapshot().size_bytes
    assert story.memory(100).total_bytes == held == 100 * story.memory().bytes_per_token
    assert story.memory(100, batch=3).total_bytes == 3 * held
    assert story.memory().tokens == 512
    for wrong in ({"tokens": 513}, {"tokens": -1}, {"batch": 0}):
        with pytest.raises(OptionError):
            story.memory(**wrong)


def test_a_text_that_cannot_fit_is_refused_with_the_numbers(story: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "available_bytes", lambda: 300_000)
    with pytest.raises(
        PromptError, match=r"of 501 tokens take 0.0 GB \(3,072 bytes each\) and 0.0 GB of memory are free; shorten"
    ) as caught:
        story.generate([5], max_new_tokens=500)
    assert "\n" not in str(caught.value)
    assert story.generate([5], max_new_tokens=5, temperature=0).token_ids


def test_what_is_free_is_read_within_the_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    4000 kB\n")
    (tmp_path / "max").write_text("3000000\n")
    (tmp_path / "current").write_text("1000000\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    assert memory.available_bytes() == 2_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.available_bytes() == 4_096_000
    (tmp_path / "meminfo").write_text("nothing")
    assert memory.available_bytes() is None


def test_info_plans_for_a_context_and_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "story", "--context", "100", "--batch", "8"]) == 0
    assert "for 8 texts of 100 tokens" in " ".join(capsys.readouterr().out.split())
    assert onnx_textgen.load(threads=1, device="cpu").memory(100, 8).total_bytes == 800 * 3072
