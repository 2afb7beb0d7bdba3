"""`onnx-textgen demo` as a person starts it."""

import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from onnx_textgen_demo.models import make_registry
from support import patient_http
from support.calling_model import TOOLS
from support.costs import by_cost
from support.patient_http import LONGEST_WAIT
from support.scripted_model import TINY_PACKAGE
from support.site_page import with_chat_template

COMMAND = [sys.executable, "-m", "onnx_textgen.cli", "demo"]


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=LONGEST_WAIT, check=False)


def test_it_says_where_the_page_is_serves_it_and_ends_with_ctrl_c(free_port):
    command = [*COMMAND, str(TINY_PACKAGE), "--no-open", "--port", str(free_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            assert f"http://127.0.0.1:{free_port}" in line
            assert patient_http.get(f"http://127.0.0.1:{free_port}/").status_code == 200
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=LONGEST_WAIT)
        finally:
            process.kill()  # else leaving the block waits for ever
    assert (process.returncode, stdout, stderr) == (130, "", "")


def test_help_names_every_option():
    result = run("--help")
    assert result.returncode == 0
    for option in (
        "--host",
        "--port",
        "--device",
        "--threads",
        "--no-open",
        "--tools",
        "--response-template",
        "--allow-public",
    ):
        assert option in result.stdout


def test_a_missing_package_is_one_line():
    result = run("no/such/folder", "--no-open")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "no/such/folder" in result.stderr


@pytest.mark.slow
def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(str(TINY_PACKAGE), "--no-open", "--port", str(port))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"port {port}" in result.stderr


def test_functions_come_with_a_warning_and_an_address_with_a_key(free_port, tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    command = [*COMMAND, str(TINY_PACKAGE), "--no-open", "--port", str(free_port), "--tools", str(tmp_path / "tools.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            named, warning, address = (process.stderr.readline() for _ in range(3))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LONGEST_WAIT)
        finally:
            process.kill()
    assert "the model may call: mark, fail" in named
    assert "can do whatever you can" in warning
    assert re.search(rf"http://127\.0\.0\.1:{free_port}/\?key=[\w-]{{32}} ", address)


@pytest.mark.parametrize("more", by_cost([[]], [["--allow-public"]]))
def test_functions_on_a_page_for_others_are_refused_in_one_line_and_their_file_is_not_run(tmp_path, more):
    (tmp_path / "tools.py").write_text("print('run')")
    result = run(str(TINY_PACKAGE), "--no-open", "--host", "0.0.0.0", *more, "--tools", str(tmp_path / "tools.py"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "error: --tools runs functions of yours, and --host 0.0.0.0 lets others use this page; leave one of them out"
    ]


def test_a_response_template_is_for_one_package_and_must_be_valid(tmp_path):
    file = tmp_path / "template.json"
    for packages, said in [((), "the page has several; give one PACKAGE"), ((str(TINY_PACKAGE),) * 2, "the page has 2;")]:
        result = run(*packages, "--no-open", "--response-template", str(file))
        assert (result.returncode, said in result.stderr) == (2, True), result.stderr
    file.write_text('{"fields": 3}')
    result = run(str(TINY_PACKAGE), "--no-open", "--response-template", str(file))
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert str(file) in result.stderr or "fields" in result.stderr


def test_a_response_template_reaches_the_model(tmp_path):
    file = tmp_path / "template.json"
    file.write_text('{"start_anchor": "<assistant>", "fields": {"reasoning_content": {"open": "[", "close": "]"}, "content": {}}}')
    package = with_chat_template(shutil.copytree(TINY_PACKAGE, tmp_path / "package"))
    registry = make_registry([str(package)], device="cpu", threads=1, response_template=file)
    assert registry.model().generator.opened.chat_format.response.data["fields"]["reasoning_content"] == {"open": "[", "close": "]"}
