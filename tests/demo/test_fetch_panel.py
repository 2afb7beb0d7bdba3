"""The panel that fetches a model: in another process, which can be stopped, and whose error is a line on the page."""

import sys
import time
from pathlib import Path

import pytest

from onnx_textgen.errors import OnnxTextgenError, OptionError
from onnx_textgen.package.short_names import short_names
from onnx_textgen_demo import fetch_panel
from onnx_textgen_demo.fetch_panel import command, describe, lines_of
from support.browser import element, elements, open_page, wait_until
from support.scripted_model import ScriptedModel

FIRST = next(iter(short_names()))
SHOWN = "#fetch .status"
IS_ON_TOP = """const { x, y, width, height } = document.querySelector("#fetch-start").getBoundingClientRect();
return document.elementFromPoint(x + width / 2, y + height / 2)?.id === "fetch-start";"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_the_last_line_is_shown_and_an_error_is_raised():
    said = list(lines_of(python("import sys, time; print('one\\ntwo\\rthree', file=sys.stderr, flush=True); time.sleep(1)")))
    assert set(said) == {"starting ...", "three"}
    with pytest.raises(OnnxTextgenError, match=r"^no such model$"):
        list(lines_of(python("import sys; print('loading', file=sys.stderr); sys.exit('error: no such model')")))


def test_a_process_that_is_killed_is_told_with_what_it_said_last():
    with pytest.raises(OnnxTextgenError, match=r"^it ended with code -9 after: trace 40\.2 s$"):
        list(lines_of(python("import os, sys; print('trace 40.2 s', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)")))


def test_closing_the_iterator_ends_the_process(tmp_path: Path, eventually):
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    lines = lines_of(
        python(
            "import pathlib, signal, sys, time\n"
            f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit(143)))\n"
            f"pathlib.Path({str(begun)!r}).touch()\n"
            "time.sleep(600)"
        )
    )
    next(lines)
    eventually(begun.exists)
    before = time.monotonic()
    lines.close()
    assert ended.exists()
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("name", ["", "nothing", "../x", None, 7, ["smollm2"]])
def test_only_names_of_the_panel_are_fetched(name: object):
    with pytest.raises(OptionError, match="there is no short name"):
        command(name)  # type: ignore[arg-type]


def test_each_model_is_described_with_its_licence_and_size():
    for name, entry in short_names().items():
        assert f"{entry.licence}, {entry.megabytes:,} MB" in describe(name)


def test_without_leave_to_fetch_the_page_has_no_panel(page_of):
    shown = page_of(ScriptedModel()).get_config_file()["components"]
    assert not [each for each in shown if each["props"].get("elem_id") == "fetch"]


@pytest.mark.slow
def test_a_fetched_model_can_be_chosen_and_one_that_fails_says_why(chromium, served, monkeypatch: pytest.MonkeyPatch):
    commands = {"fails": python("import sys; sys.exit('error: the disk is full')"), "works": python("")}
    now = ["fails"]
    monkeypatch.setattr(fetch_panel, "command", lambda name: commands[now[0]])
    open_page(chromium, served(ScriptedModel(), opener_of=lambda name: ScriptedModel))
    element(chromium, "#fetch button").click()
    wait_until(chromium, lambda: short_names()[FIRST].licence in element(chromium, SHOWN).text, "the description")
    wait_until(chromium, lambda: chromium.execute_script(IS_ON_TOP), "the open panel, over the page")
    element(chromium, "#fetch-start").click()
    wait_until(chromium, lambda: "the disk is full" in element(chromium, SHOWN).text, "the error")
    now[0] = "works"
    wait_until(chromium, element(chromium, "#fetch-start").is_enabled, "the end of the first")
    element(chromium, "#fetch-start").click()
    wait_until(chromium, lambda: f"{FIRST} is ready" in element(chromium, SHOWN).text, "the end of the second")
    element(chromium, "#picker input").click()
    wait_until(chromium, lambda: FIRST in [each.text for each in elements(chromium, "[role=option]")], "the choice")
