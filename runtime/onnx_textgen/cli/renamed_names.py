"""Flags and commands that were renamed: an old one still works, with a warning on stderr."""

from __future__ import annotations

from collections.abc import Sequence

from .terminal import screen

RENAMED = {"--prefix-cache": "--prefix-folder", "--prefix-bytes": "--prefix-folder-bytes"}
RENAMED_COMMANDS = {"add-adapter": ("adapter", "add"), "remove-adapter": ("adapter", "remove")}


def in_todays_names(arguments: Sequence[str]) -> list[str]:
    """The arguments with today's command and flags, up to a `--`, after which none is a flag; warns of each old one.

    `help COMMAND` is `COMMAND -h`.
    """
    found = list(arguments)
    for place in range(found.index("--") if "--" in found else len(found)):
        flag, *value = found[place].split("=", 1)
        if flag in RENAMED:
            screen.note(f"warning: {flag} is called {RENAMED[flag]} now")
            found[place] = "=".join([RENAMED[flag], *value])
    place = place_of_command(found)
    if found[place : place + 1] == ["help"]:  # as other programs have it
        found[place:] = [*found[place + 1 :], "-h"]
    if (named := RENAMED_COMMANDS.get("".join(found[place : place + 1]))) is not None:
        screen.note(f"warning: {found[place]} is called {' '.join(named)} now")
        found[place : place + 1] = named
    return found


def place_of_command(arguments: Sequence[str]) -> int:
    """The place of the command, after the options of all commands, of which only `--color` has a value."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 2 if arguments[place] == "--color" else 1
    return place
