"""Runs the cases of laws in a process of its own, with limits of processor time and memory, which starts anew where one ends it.

`python -m tests.attacks.trial` is that process: it reads requests from its standard input, and makes the cases itself, from their
seed, so that a case needs no form in which it could be sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from onnx_textgen.cli.app import DEBUG_VARIABLE, accept_any_text

from .law import HARMLESS, REFUSED, SEED, Case, Law, Violation

ROOT = Path(__file__).resolve().parents[2]
LONGEST_WAIT = 120
"""Seconds by the clock for one case: an opened pipe may take for ever and no processor time."""
HANGS = (signal.SIGXCPU, signal.SIGALRM)
CASE, VERDICT, END = "case", "verdict", "end"
"""What a line from the process tells."""


@dataclass(slots=True)
class Tally:
    """What came of a law's cases."""

    law: Law
    verdicts: dict[str, int] = field(default_factory=lambda: {REFUSED: 0, HARMLESS: 0})
    violations: list[str] = field(default_factory=list)
    """A line each: the case, and what happened."""
    cpu_seconds: float = 0.0

    @property
    def cases(self) -> int:
        """How many were tried."""
        return sum(self.verdicts.values()) + len(self.violations)


class Trial:
    """Asks a process for the verdicts on laws; a context, at whose end the process ends too."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> subprocess.Popen[str]:
        """The process; a new one where the last has died."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", f"{__package__}.trial"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80", DEBUG_VARIABLE: "1"}
            self.process = subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes)
        return self.process

    def end(self) -> int:
        """End the process; its exit code."""
        if self.process is None:
            return 0
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        code, self.process = self.process.wait(), None
        return code

    def judge(self, law: Law, count: int, seed: int = SEED) -> Tally:
        """The verdicts on so many cases of a law."""
        tally, start = Tally(law), 0
        while start is not None:
            start = self.judge_from(start, tally, count, seed)
        return tally

    def judge_from(self, start: int, tally: Tally, count: int, seed: int) -> int | None:
        """The same from one case on; the next one to be tried where the process died, else None."""
        process, has_begun = self.begin(), False
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        process.stdin.write(json.dumps([tally.law.name, count, seed, start]) + "\n")
        process.stdin.flush()
        running, spent = f"case {start}", 0.0
        for line in process.stdout:
            kind, *told = json.loads(line)
            if kind == CASE:
                has_begun, (start, running) = True, told
            elif kind == VERDICT:
                verdict, why, spent = told
                if why:
                    tally.violations.append(f"{running}: {why}")
                else:
                    tally.verdicts[verdict] += 1
            else:
                tally.cpu_seconds += spent
                return None
        code = self.end()
        if not has_begun:
            raise RuntimeError(f"the process ended with {code} before a case of: {tally.law.name}")
        what = "hang" if -code in HANGS else "crash"
        tally.violations.append(f"{running}: {what} ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})")
        tally.cpu_seconds += spent
        return start + 1


def used() -> float:
    """Seconds of processor time of this process and of those that it started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def limit(law: Law) -> None:
    """Bound what this process may take from here on."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(own.ru_utime + own.ru_stime) + law.cpu_seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (law.memory_bytes, resource.RLIM_INFINITY))
    signal.alarm(LONGEST_WAIT)


def verdict_on(case: Case) -> tuple[str, str]:
    """The verdict, and what is wrong, empty where nothing is."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        try:
            return case.check(Path(folder)), ""
        except Violation as violation:
            return "", str(violation)
        except BaseException as error:  # noqa: BLE001 - panics of Rust code are no `Exception`; each is what the law forbids
            place = traceback.extract_tb(error.__traceback__)[-1]
            return "", f"{type(error).__name__}: {error!s:.300} ({Path(place.filename).name}:{place.lineno})"


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer every request with a line before each case, a line behind it, and one at the end."""
    from .laws import LAWS  # noqa: PLC0415  (they import this module's caller)

    laws = {law.name: law for law in LAWS}

    def tell(*what: object) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    for request in requests:
        name, count, seed, start = json.loads(request)
        law, before = laws[name], used()
        limit(law)
        try:
            for number, case in enumerate(law.cases(count, random.Random(f"{seed} {name}"))):
                if number >= start:
                    limit(law)
                    tell(CASE, number, case.name)
                    tell(VERDICT, *verdict_on(case), used() - before)
        except Exception as error:  # noqa: BLE001 - reported, or it would look like the end of the law
            tell(CASE, start, "the making of the cases")
            tell(VERDICT, "", f"{type(error).__name__}: {error}", used() - before)
        signal.alarm(0)
        tell(END)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the attacked code prints is no answer
    accept_any_text(sys.stdout)  # as the command line does, before it runs
    serve(sys.stdin, told)
