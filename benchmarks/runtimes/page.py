"""The results as a table: a line for each package, a column for each runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Record = dict[str, Any]
BEGIN, END = "<!-- measured: runtimes -->\n", "<!-- end -->"


def cell(record: Record | None) -> str:
    """What one runtime makes of one package."""
    if record is None:
        return ""
    if "reason" in record:
        return "-"
    text = f"{record['same']}/{record['prompts']}"
    if record["exact"] != record["same"] or record["rounds"]:
        text += f" ({record['exact']})"
    return text + (f" of {record['tokens']} tokens" if record["tokens"] < record["wanted_tokens"] else "")


def table(records: list[Record]) -> str:
    """Markdown."""
    columns = list(dict.fromkeys(record["runtime"] for record in records))
    rows = list(dict.fromkeys(record["package"] for record in records))
    found = {(record["package"], record["runtime"]): record for record in records}
    lines = ["| package | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [f"| {row} | " + " | ".join(cell(found.get((row, column))) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def reasons(records: list[Record]) -> str:
    """Why there is no number, a line for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if "reason" in record:
            found.setdefault((record["runtime"], record["reason"]), []).append(record["package"])
    return "\n".join(f"- {runtime}, {', '.join(packages)}: {reason}" for (runtime, reason), packages in found.items())


def write_page(page: Path, text: str) -> None:
    """Put a text between the marks of a page; raises `ValueError` where there are none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN.strip()} and {END}; add them where the table should stand")
    page.write_text(f"{before}{BEGIN}{text}\n{END}{after}", encoding="utf-8")
