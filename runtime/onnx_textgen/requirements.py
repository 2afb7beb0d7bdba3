"""The versions of other libraries that onnx-textgen works with, for the message after an import that failed because of a version.

Only pip enforces the ranges in the metadata, and users can override pip. Versions are checked only after a failure: an untested
version may work.
"""

from __future__ import annotations

import re
from types import ModuleType

TRIED = {
    "gradio": "6.31.0",
    "numpy": "2.4.6",
    "onnx": "1.23.2",
    "onnx-ir": "1.1.0",
    "onnxruntime": "1.32.0",
    "onnxscript": "0.7.2",
    "openvino": "2026.4.1",
    "tokenizers": "0.23.3",
    "torch": "2.13.0",
    "transformers": "5.24.0",
}
"""The newest versions that the tests ran with."""
DISTRIBUTIONS = {"google": "protobuf"}
"""Distributions by the name of their module, where the two names differ."""
PLACE = re.compile(r" \([^()]*\)$")
"""The path of the module at the end of an import error's message."""
SUBSTITUTES = {"onnxruntime": "onnxruntime-gpu"}
"""Other distributions with the same module."""


def wrong_version(error: BaseException) -> str | None:
    """Message for an error that a library's version caused, with the command that installs one that works; None for other errors.

    Such an error says that an installed library lacks a name or a module.
    """
    blamed: BaseException | None = error
    while blamed is not None:
        name = library_of(blamed)
        found = name and installed(name)
        if name and found and (wanted := asked_for().get(name)):
            what = f"{name} {found} does not work here: {PLACE.sub('', str(blamed))}"
            tried = TRIED.get(name)
            if tried and is_within(found, wanted):
                return f'{what}; {wanted} should, and {tried} is the newest that was tried: pip install "{name}=={tried}"'
            return f'{what}; {wanted} does: pip install "{name}{wanted}"'
        blamed = blamed.__cause__ or blamed.__context__
    return None


def library_of(error: BaseException) -> str | None:
    """The library that lacks a name; None if the whole library is missing, and for other errors."""
    where = error.name if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        where = error.obj.__name__
    top = (where or "").partition(".")[0]
    if not top or (isinstance(error, ModuleNotFoundError) and where == top):
        return None
    return DISTRIBUTIONS.get(top, top.replace("_", "-"))


def installed(name: str) -> str | None:
    """The installed version of a distribution, or of its substitute; None if neither is installed."""
    return version_of(name) or (version_of(SUBSTITUTES[name]) if name in SUBSTITUTES else None)


def version_of(name: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 - its import takes a twentieth of the time in which a model opens

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def asked_for() -> dict[str, str]:
    """The ranges that onnx-textgen requires, by distribution: `>=5.2,<6`; extras included, libraries without a range left out.

    Empty if onnx-textgen has no metadata, for example in a program that was frozen into one file.
    """
    from importlib import metadata  # noqa: PLC0415 - see `version_of`

    try:
        lines = metadata.requires("onnx-textgen") or []
    except metadata.PackageNotFoundError:
        lines = []
    found: dict[str, str] = {}
    for line in lines:
        match = re.match(r"([\w.-]+)\s*(?:\[[^]]*\])?\s*\(?([<>][^;)]*)", line)  # no `==`, which only `dev` has
        if match is not None:
            parts = sorted(match[2].replace(" ", "").split(","), reverse=True)  # `>=` before `<`
            found.setdefault(match[1].replace("_", "-").lower(), ",".join(parts))
    return found


def is_within(version: str, wanted: str) -> bool:
    """Return whether a version is in a range.

    >>> is_within("5.23.0", ">=5.2,<6"), is_within("6.0.0", ">=5.2,<6")
    (True, False)
    """
    found = as_numbers(version)
    for part in wanted.split(","):
        bound = as_numbers(part)
        if (part.startswith(">=") and found < bound) or (not part.startswith(">") and found >= bound):
            return False
    return True


def as_numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version.

    >>> as_numbers("1.26.4rc1") > as_numbers("1.9")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
