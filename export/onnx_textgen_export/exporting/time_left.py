"""Corrects the forecast of an export's time as its stages pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..package.forecast import Stage
from ..reports import Report

STAGES: Mapping[str, Stage] = {
    "estimate": "estimate",
    "trace": "trace",
    "read": "read",
    "calibrate": "calibrate",
    "write": "round",
    "measure": "round",
    "compare": "compare",
}
"""The stage of a forecast by the first word of what is reported; the stages are in their order."""
WORTH_SAYING, SHORTEST = 0.25, 60.0
"""Change of the time that is left from which it is said again, as a share of it and in seconds."""
SKIPPED = 0.05
"""Share of its forecast below which a stage had nothing to do: a resumed export has its results."""
TRUST = 0.25
"""Share of the whole forecast that stages must take before they count as much as it does."""


class TimeLeft:
    """A report that is told stages, and says when the export will take longer or shorter than was said before."""

    def __init__(self, report: Report, stages: Mapping[Stage, float], clock: Callable[[], float] = time.monotonic) -> None:
        """stages: the forecast, seconds of each."""
        self.report, self.clock = report, clock
        self.forecast = {stage: stages.get(stage, 0.0) for stage in dict.fromkeys(STAGES.values())}
        self.taken = dict.fromkeys(self.forecast, 0.0)
        self.stage: Stage | None = None
        self.since = clock()
        self.end = self.since + sum(self.forecast.values())

    def __call__(self, line: str) -> None:
        """Report a line, and before the first of a stage what is left."""
        stage = STAGES.get(line.partition(" ")[0].strip(",:"))
        if stage is not None and ":" not in line:
            self.begin(stage)
        self.report(line)

    def begin(self, stage: Stage) -> None:
        """Count the time since the last call for the stage that ran, and say what is left if another one begins."""
        now = self.clock()
        if self.stage is not None:
            self.taken[self.stage] += now - self.since
        self.since = now
        if stage == self.stage:
            return
        is_first, self.stage = self.stage is None, stage
        left = self.left()
        if not is_first and abs(now + left - self.end) > max(WORTH_SAYING * left, SHORTEST):
            self.end = now + left
            self.report(f"forecast: about {left:,.0f} s more")

    def left(self) -> float:
        """Seconds of the stages that have not ended, by the forecast and by the speed of those that have."""
        order = list(self.forecast)
        at = order.index(self.stage) if self.stage is not None else 0
        trusted = TRUST * sum(self.forecast.values())
        passed = [each for each in order[:at] if self.taken[each] > SKIPPED * self.forecast[each]]
        taken, expected = (trusted + sum(of[each] for each in passed) for of in (self.taken, self.forecast))
        return taken / max(expected, 1e-9) * sum(self.forecast[each] for each in order[at:])
