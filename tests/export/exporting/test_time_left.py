"""The forecast of an export's time is corrected when its stages take longer or shorter, and only then."""

from __future__ import annotations

import pytest

from onnx_textgen_export.exporting.time_left import TimeLeft
from onnx_textgen_export.package.forecast import Stage

FORECAST: dict[Stage, float] = {"trace": 100, "read": 200, "calibrate": 400, "round": 200, "compare": 100}
LINES = {
    "trace": 100.0,
    "read texts with PyTorch": 200.0,
    "calibrate on 1,024 tokens": 400.0,
    "write int4": 50.0,
    "measure the rounding": 150.0,
    "compare with PyTorch": 100.0,
}


def said(slower: float, *, scale: float = 1.0) -> list[tuple[float, float]]:
    """What an export says is left, and what really is, if its stages take `slower` times their forecast; in seconds."""
    lines, now, found = list[str](), 0.0, list[tuple[float, float]]()
    left = TimeLeft(lines.append, {stage: scale * seconds for stage, seconds in FORECAST.items()}, lambda: now)
    for line, seconds in LINES.items():
        left(line)
        if lines[-2:-1] and lines[-2].startswith("forecast: "):
            found.append((float(lines[-2].split()[2].replace(",", "")), 1000 * scale * slower - now))
        for step in range(4):
            now += scale * slower * seconds / 4
            left(f"{line}, {step} of 4")
        left("rounding: a message")
    return found


def test_what_is_forecast_right_is_said_once() -> None:
    assert said(1.0) == said(1.05) == []


@pytest.mark.parametrize("slower", [0.3, 0.5, 2.0, 3.0])
def test_a_machine_of_another_speed_is_noticed(slower: float) -> None:
    found = said(slower)
    assert 1 <= len(found) <= 4
    assert all(abs(seconds - real) < abs(real / slower - real) for seconds, real in found), "nearer than the forecast"
    assert found[-1][0] == pytest.approx(found[-1][1], rel=0.5, abs=60)


def test_seconds_are_not_worth_a_line() -> None:
    assert said(3.0, scale=0.02) == []


def test_steps_and_messages_belong_to_their_stage() -> None:
    lines, now = list[str](), 0.0
    left = TimeLeft(lines.append, FORECAST, lambda: now)
    left("trace")
    now = 1000.0
    left("trace, layer 3 of 4")
    left("estimate: 4 bits alone lose about KL 0.014")
    assert lines == ["trace", "trace, layer 3 of 4", "estimate: 4 bits alone lose about KL 0.014"]
    left("read texts with PyTorch")
    assert lines[3:] == ["forecast: about 3,214 s more", "read texts with PyTorch"]
