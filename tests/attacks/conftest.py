"""The process that attacks run in, and the table of what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.examples import DEEP

if TYPE_CHECKING:
    from .law import Cell
VERDICTS = "verdicts"


@pytest.fixture(scope="session")
def cell() -> Iterator[Cell]:
    """The process that runs what could end one; it is the same for all laws."""
    from .law import Cell  # noqa: PLC0415  (it skips where there are no limits)

    cell = Cell()
    yield cell
    cell.process.terminate()


@pytest.fixture(autouse=True)
def count_verdicts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Add the verdicts on a law to its report, which workers send."""
    from .law import TALLY  # noqa: PLC0415  (it skips where there are no limits)

    TALLY.clear()
    yield
    request.node.user_properties.append((VERDICTS, dict(TALLY)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table for docs/security.md at the end of a deep run."""
    if terminalreporter.config.getoption("--hypothesis-profile") != DEEP:
        return
    laws: dict[str, Counter[str]] = {}
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            for _, verdicts in (each for each in report.user_properties if each[0] == VERDICTS):
                sentence = report.location[2].partition("[")[0].removeprefix("test_").replace("_", " ")
                laws.setdefault(sentence.capitalize(), Counter()).update(verdicts)
    if laws:
        terminalreporter.section("attacks")
        lines = [("Law", "Attacks", "Refused", "Harmless"), ("---", "---:", "---:", "---:")]
        lines += [(law, *(f"{n:,}" for n in (tally.total(), tally["refused"], tally["harmless"]))) for law, tally in laws.items()]
        terminalreporter.write_line("\n".join(f"| {' | '.join(line)} |" for line in lines))
