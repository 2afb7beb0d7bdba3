"""`onnx-textgen demo` as a person starts it."""

import signal
import socket
import subprocess
import sys

from support import patient_http
from support.patient_http import LONGEST_WAIT
from support.scripted_model import TINY_PACKAGE

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
    for option in ("--host", "--port", "--device", "--threads", "--no-open", "--mcp", "--allow-public"):
        assert option in result.stdout


def test_a_missing_package_is_one_line():
    result = run("no/such/folder", "--no-open")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "no/such/folder" in result.stderr


def test_a_taken_port_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(str(TINY_PACKAGE), "--no-open", "--port", str(port))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"port {port}" in result.stderr
