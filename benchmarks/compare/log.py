"""Where measurements are kept between runs."""

from __future__ import annotations

import json
import time
from pathlib import Path


class Log:
    """A file with a JSON object a line, the time of the run in each."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, time.strftime("%Y-%m-%d %H:%M:%S")

    def write(self, kind: str, record: dict[str, object]) -> None:
        """Append a record."""
        with self.path.open("a") as file:
            print(json.dumps({"run": self.run, "kind": kind, **record}), file=file)
