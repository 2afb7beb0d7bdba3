"""Prints the lowest versions that pyproject.toml allows, as constraints for pip; arguments are the extras that they are for.

    python tests/support/lower_bounds.py export serve grammar openvino > low.txt
    pip install -c low.txt -e ".[export,serve,grammar,openvino]"

What `dev` pins exactly (torch) is printed in the place of a lower bound.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def read_requirements(project: Mapping[str, Any], extras: Sequence[str]) -> Iterator[Requirement]:
    """What the runtime needs and what `extras` add, those that they name included; and what `dev` pins."""
    lines, wanted, optional = [*project["dependencies"]], [*extras], project["optional-dependencies"]
    for extra in wanted:  # grows as it is read
        for line in optional[extra]:
            if own := re.fullmatch(rf"{project['name']}\[(.*)\]", line):
                wanted += own[1].split(",")
            else:
                lines.append(line)
    pinned = [line for line in optional["dev"] if "==" in line.partition(";")[0]]
    return map(Requirement, lines + pinned)


def lower_bounds(requirements: Iterator[Requirement]) -> dict[str, Version]:
    """The lowest version of each library that has a lower bound."""
    found: dict[str, Version] = {}
    for requirement in requirements:
        for each in requirement.specifier:
            if each.operator in (">=", "==", "~="):
                found[requirement.name] = max(Version(each.version), found.get(requirement.name, Version("0")))
    return found


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    for name, version in sorted(lower_bounds(read_requirements(project, sys.argv[1:])).items()):
        print(f"{name}=={version}")
