"""`python -m tests.attacks`: every case of every law, and a table of what came of them. Exit code 1 where a law was broken.

python -m tests.attacks                  all
python -m tests.attacks flips sessions   the laws of these modules, or with these words in their sentence
python -m tests.attacks --quick          as many cases as pytest tries
python -m tests.attacks --markdown       the table as in docs/security.md
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from .law import SEED, Law
from .laws import LAWS
from .trial import Tally, Trial

COLUMNS = ("Law", "Cases", "Refused", "Harmless", "Violations", "CPU seconds")


def is_meant(law: Law, words: list[str]) -> bool:
    """Whether any of the words names the law's module, or is in its sentence; no words mean all laws."""
    return not words or any(word == law.module or word.lower() in law.name.lower() for word in words)


def row(tally: Tally) -> tuple[str, ...]:
    """A line of the table."""
    counts = (tally.cases, tally.verdicts["refused"], tally.verdicts["harmless"], len(tally.violations))
    return (tally.law.name, *(f"{count:,}" for count in counts), f"{tally.cpu_seconds:.0f}")


def markdown(rows: list[tuple[str, ...]]) -> str:
    """The table for the documentation, without the seconds, which belong to a machine."""
    lines = [COLUMNS[:-1], ("---", *["---:"] * (len(COLUMNS) - 2)), *(cells[:-1] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    """Try the laws that are asked for; 1 where one was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description="Try to break every law of the attack suite.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only laws of this module, or with this word in their sentence")
    parser.add_argument("--quick", action="store_true", help="as many cases as pytest tries")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    if not (laws := [law for law in LAWS if is_meant(law, options.words)]):
        parser.error(f"no law is called {' or '.join(options.words)}")
    notes, tallies = Console(stderr=True, highlight=False), []
    with Trial() as trial:
        for law in laws:
            tally = trial.judge(law, law.quick if options.quick else law.whole, options.seed)
            tallies.append(tally)
            notes.print(f"{law.module}: {law.name}: {tally.cases:,} cases, {tally.cpu_seconds:.0f} s", markup=False, soft_wrap=True)
            for line in tally.violations:
                notes.print(f"  VIOLATION {line}", markup=False, soft_wrap=True)
    rows = [row(tally) for tally in tallies]
    if options.markdown:
        print(markdown(rows))
    else:
        table = Table(*COLUMNS)
        for column in table.columns[1:]:
            column.justify = "right"
        for cells in rows:
            table.add_row(*cells)
        Console().print(table)
    return 1 if any(tally.violations for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
