"""Flags that were renamed: an old one still works, with a warning on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from .terminal import screen

RENAMED = {"--prefix-cache": "--prefix-folder", "--prefix-bytes": "--prefix-folder-bytes"}


def in_todays_flags(arguments: Sequence[str]) -> list[str]:
    """The arguments with today's flags, up to a `--`, after which none is a flag; warns of each old one."""
    found = list(arguments)
    for place in range(found.index("--") if "--" in found else len(found)):
        flag, *value = found[place].split("=", 1)
        if flag in RENAMED:
            screen.note(f"warning: {flag} is called {RENAMED[flag]} now")
            found[place] = "=".join([RENAMED[flag], *value])
    return found
