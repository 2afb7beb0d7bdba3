"""`--image` of generate and chat, and `/image` in a chat."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onnx_textgen.cli.app import app
from onnx_textgen.images import addresses

pytest.importorskip("PIL")
from support.drawn_numbers import drawn

PROMPT = "<|user|><image>What number is this?<|end|><|assistant|>"
GREEDY = ["--temperature", "0", "--max-new-tokens", "6"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    path.write_bytes(drawn("305"))
    return path


def test_generate(file: Path) -> None:
    found = CliRunner().invoke(app, ["generate", PROMPT, "--model", "digits", "--image", str(file), *GREEDY])
    assert found.exit_code == 0 and found.stdout.strip() == "305"


def test_an_address_of_the_web_that_its_user_names_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def fetched(address: str, most_bytes: int) -> bytes:
        asked.append(address)
        return drawn("41")

    monkeypatch.setattr(addresses, "fetched", fetched)
    url = "https://example.com/number.png"
    found = CliRunner().invoke(app, ["generate", PROMPT, "--model", "digits", "--image", url, *GREEDY])
    assert found.exit_code == 0 and found.stdout.strip() == "41"
    found = CliRunner().invoke(app, ["chat", "digits", *GREEDY], input=f"/image {url}\nWhat number is this?\n")
    assert found.stdout.splitlines()[0] == "41" and asked == [url, url]


def test_chat(file: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.session"
    lines = [f'/image "{file}"', "What number is this?", f"/save {saved}", "/undo", f"/load {saved}", "How many digits are there?"]
    found = CliRunner().invoke(app, ["chat", "digits", *GREEDY], input="\n".join(lines))
    assert found.exit_code == 0
    assert found.stdout.splitlines()[0] == "305"
    assert "a picture for the next question" in found.stderr
    assert "> [picture] What number is this?" in found.stderr


def test_chat_begins_with_a_picture(file: Path) -> None:
    found = CliRunner().invoke(
        app, ["chat", "digits", "--image", str(file), *GREEDY], input="What number is this?\n/retry\n/stats\n"
    )
    assert found.stdout.splitlines()[0] == "305"


@pytest.mark.parametrize(
    ("line", "why"),
    [("/image", "needs a file"), ("/image missing.png", "No such file"), ("/image README.md", "No such file")],
)
def test_what_is_no_picture_gets_one_line(line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["chat", "digits"], input=f"{line}\n")
    assert why in found.stderr and found.stderr.count("error:") == 1


def test_models_of_text(file: Path) -> None:
    found = CliRunner().invoke(app, ["generate", "x", "--image", str(file)])
    assert found.exit_code == 1 and "reads text alone" in str(found.exception)
    found = CliRunner().invoke(app, ["chat", "story"], input=f"/image {file}\n")
    assert "reads text alone" in found.stderr


def test_verify_and_info() -> None:
    found = CliRunner().invoke(app, ["verify", "digits"])
    assert found.exit_code == 0 and "pictures: 2 read again" in found.stdout
    assert "64 tokens a picture" in CliRunner().invoke(app, ["info", "digits"]).stdout
