"""The first chat of a newcomer: a real terminal, an empty cache, no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnx_textgen.hub.model_cache import VARIABLE
from support.patient_http import LONGEST_WAIT
from support.smollm2 import smollm2_file

pytest.importorskip("termios", reason="needs a pseudo-terminal")
from support.terminal import PseudoTerminal  # Windows has none

QUESTION = "How many legs does a dog have?"


def test_the_first_chat_needs_one_command_and_no_pytorch(tmp_path: Path) -> None:
    smollm2_file()  # else it would be downloaded
    for name in ("torch", "transformers", "gguf", "safetensors"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the base install has no {name}')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), VARIABLE: str(tmp_path / "cache"), "TERM": "xterm-256color"}
    terminal = PseudoTerminal(80)
    with terminal.streams() as (stdin, stdout, stderr):
        command = [sys.executable, "-m", "onnx_textgen.cli", "chat", "smollm2", "--temperature", "0", "--max-new-tokens", "40"]
        chat = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, start_new_session=True)  # type: ignore[call-overload]
        for typed in (QUESTION, "/bye"):
            wait_for_prompt(terminal, chat)
            terminal.type(f"{typed}\n")
        assert chat.wait(LONGEST_WAIT) == 0
    shown = terminal.rows()
    text = "\n".join(shown)
    assert "SmolLM2-135M-Instruct, licence Apache-2.0: 92 MB" in " ".join(shown), "what is fetched is said"
    answer = text[text.index(QUESTION) + len(QUESTION) : text.rindex("/bye")]
    assert "4" in answer or "four" in answer
    assert "tokens" in answer and "Traceback" not in text
    assert len(list((tmp_path / "cache").glob("smollm2/manifest.json"))) == 1


def wait_for_prompt(terminal: PseudoTerminal, chat: subprocess.Popen[bytes]) -> None:
    """Wait until the chat waits for a message."""
    latest = time.monotonic() + LONGEST_WAIT
    while b"> " not in terminal.written[-4:]:
        assert time.monotonic() < latest and chat.poll() is None, terminal.written.decode(errors="replace")
        time.sleep(0.02)
