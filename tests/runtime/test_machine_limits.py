"""Cores, processor time, memory and homes are taken within what the system and its containers allow, in every layout of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnx_textgen
from onnx_textgen import machine_limits
from onnx_textgen.backends import onnxruntime_session
from onnx_textgen.backends.onnxruntime_session import make_options

PERIOD = 100_000


class Machine:
    """Files of a machine in a folder of the test's."""

    def __init__(self, folder: Path) -> None:
        self.groups = folder / "cgroup"
        self.own, self.info, self.memory = folder / "own", folder / "cpuinfo", folder / "meminfo"
        self.write(self.own, "")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")

    def use(self, patch: pytest.MonkeyPatch) -> None:
        for name, path in {
            "GROUPS": self.groups,
            "OWN_GROUPS": self.own,
            "CPU_INFO": self.info,
            "MEMORY_INFO": self.memory,
        }.items():
            patch.setattr(machine_limits, name, path)

    def set_quota(self, place: tuple[str, ...], version: int, quota: int | None) -> None:
        """Give a group a limit of processor time, in microseconds of each period."""
        if version == 2:
            self.write(self.groups.joinpath(*place, "cpu.max"), f"{'max' if quota is None else quota} {PERIOD}")
        else:
            self.write(self.groups.joinpath(*place, "cpu.cfs_quota_us"), str(-1 if quota is None else quota))
            self.write(self.groups.joinpath(*place, "cpu.cfs_period_us"), str(PERIOD))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    made.use(monkeypatch)
    return made


MOUNTS = {
    "version 2": (2, "0::{path}", ""),
    "version 2, beside version 1": (2, "4:memory:/\n0::{path}", "unified"),
    "version 1": (1, "4:cpu,cpuacct:{path}\n3:memory:/elsewhere", "cpu,cpuacct"),
    "version 1, by a link": (1, "4:cpu,cpuacct:{path}", "cpu"),
}
"""Version, what the process' own file says, and the folder below which the groups lie."""
NAMES = ["system.slice", "docker-0a.scope", "kubepods", "pod7"]


@given(
    st.sampled_from(sorted(MOUNTS)),
    st.lists(st.none() | st.integers(1_000, 64 * PERIOD), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_least_quota_of_a_group_and_of_those_above_it_holds(
    tmp_path_factory: pytest.TempPathFactory, layout: str, quotas: list[int | None], in_namespace: bool
) -> None:
    """The first quota is the root's; in a container the root is all that is visible, whatever path the process is told."""
    machine, (version, told, mount) = Machine(tmp_path_factory.mktemp("machine")), MOUNTS[layout]
    path = "/".join(NAMES[: len(quotas) - 1])
    visible = quotas[:1] if in_namespace else quotas
    for depth, quota in enumerate(visible):
        machine.set_quota((mount, *NAMES[:depth]), version, quota)
    machine.write(machine.own, told.format(path=f"/{path}"))
    least = min((quota / PERIOD for quota in visible if quota is not None), default=None)
    with pytest.MonkeyPatch.context() as patch:
        machine.use(patch)
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
        patch.setattr(os, "cpu_count", lambda: 64)
        assert machine_limits.core_limit() == least
        assert machine_limits.threads_within_limits() == (None if least is None else max(1, min(64, int(least))))


def test_half_the_cores_of_a_machine_with_two_threads_per_core_are_counted_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [f"processor\t: {each}\nphysical id\t: {each // 8}\ncore id\t: {each % 4}" for each in range(16)]
    machine.write(machine.info, "\n\n".join(blocks))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for allowed, threads in ((range(16), None), (range(8), 4), ([0, 4], 1), ([0, 8], 2), ([3], 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: set(allowed), raising=False)
        assert machine_limits.threads_within_limits() == threads
    machine.write(machine.info, "Processor : ARM\n")  # tells no cores
    assert machine_limits.threads_within_limits() == 1


def test_sessions_take_the_threads_that_a_container_gives_time_for_unless_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_session, "threads_within_limits", machine_limits.threads_within_limits)  # see tests/conftest.py
    machine.set_quota((), 2, PERIOD)
    assert make_options(None).intra_op_num_threads == 1
    assert make_options(3).intra_op_num_threads == 3
    assert make_options(None).get_session_config_entry("mlas.disable_kleidiai") == "1", "else ARM rounds whole rows by one scale"
    machine.set_quota((), 2, None)
    assert make_options(None).intra_op_num_threads == (machine_limits.threads_within_limits() or 0)


MEMORY = {
    "version 2": ("", "memory.max", "memory.current", "inactive_file"),
    "version 1": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@pytest.mark.parametrize("layout", MEMORY)
def test_free_memory_is_read_within_the_limits_of_a_container_and_of_those_around_it(layout: str, machine: Machine) -> None:
    mount, limit, used, cached = MEMORY[layout]
    root = machine.groups / mount
    machine.write(machine.own, "0::/pod/box\n3:memory:/pod/box")
    assert machine_limits.available_bytes() is None
    machine.write(machine.memory, "MemTotal: 100 kB\nMemAvailable:    4000 kB\n")
    assert machine_limits.available_bytes() == 4_096_000
    for folder, most in ((root / "pod", "3500000"), (root / "pod" / "box", "max")):
        machine.write(folder / limit, most)
        machine.write(folder / used, "2900000")
    assert machine_limits.available_bytes() == 600_000
    machine.write(root / "pod" / "box" / limit, "3000000")
    assert machine_limits.available_bytes() == 100_000
    # What the system would give back at once, as the pages of the model's own weights, is free.
    machine.write(root / "pod" / "box" / "memory.stat", f"anon 900000\n{cached} 400000\nactive_file 100000")
    assert machine_limits.available_bytes() == 500_000
    machine.write(root / "pod" / "box" / used, "3500000")
    assert machine_limits.available_bytes() == 0


NOBODY = """
import pwd
def unknown(_):
    raise KeyError("no entry")
pwd.getpwuid = pwd.getpwnam = unknown
from onnx_textgen.cli.app import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no module pwd")
@pytest.mark.parametrize("command", ["list", "doctor", "generate Once --max-new-tokens 3", "info story", "pull"])
def test_a_user_without_an_entry_and_a_home_can_use_every_command(command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
    asked = [sys.executable, "-c", NOBODY, *command.split()]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, check=False)
    assert "Error" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_a_home_that_nobody_knows_is_a_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx_textgen.files.user_folders import expanded  # noqa: PLC0415

    monkeypatch.setattr(Path, "expanduser", lambda _: (_ for _ in ()).throw(RuntimeError("no home")))
    assert expanded("~/models") == Path("/nonexistent/models")
    assert onnx_textgen.load("story", device="cpu", threads=1).generate("Once", max_new_tokens=1).token_ids
