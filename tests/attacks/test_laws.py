"""Every law of the attack suite, on a part of its cases; `python -m tests.attacks` tries them all."""

from collections.abc import Iterator

import pytest

pytest.importorskip("onnx")
pytest.importorskip("resource", reason="the limits of processor time and memory are those of POSIX")

from .law import Law
from .laws import LAWS
from .trial import Trial


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    """The process that runs the cases."""
    with Trial() as trial:
        yield trial


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.module}: {law.name}")
def test_the_law_holds(law: Law, trial: Trial) -> None:
    tally = trial.judge(law, law.quick)
    assert tally.violations == []
    assert tally.cases > 0
