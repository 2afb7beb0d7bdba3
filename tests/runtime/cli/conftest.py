"""What the commands leave in the process is undone: `--color` sets variables that other libraries read too."""

import pytest


@pytest.fixture(autouse=True)
def no_colours_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the colours that a command chose."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, "")  # so that what a test sets later is undone too
        monkeypatch.delenv(name)
