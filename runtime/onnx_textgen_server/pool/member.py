"""One model of a server, open or not, and what is known about it without opening it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from onnx_textgen import Model, OnnxTextgenError
from onnx_textgen.errors import ModelError, PackageError

from .changed_files import ChangedFiles, identity
from .sources import Description, Source, description_file


@dataclasses.dataclass(eq=False, slots=True)
class Member:
    """One model of a pool, open or not."""

    source: Source
    model: Model | None = None
    files: ChangedFiles | None = None
    """The files of the open model."""
    users: int = 0
    """Requests that use the model, or wait for it."""
    last_used: int = -1
    """The number of the last use, counted over all models."""
    opening: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    """Closes the model when it is idle."""
    failure: tuple[float, ModelError] | None = None
    """When it could not be opened, and why."""
    known: tuple[tuple[int, ...] | None, Description | PackageError] | None = None
    """What the description was read from, and the description, or why it could not be read."""

    @property
    def name(self) -> str:
        """The name by which clients call the model."""
        return self.source.name

    def description(self) -> Description:
        """The description, read again if its file has changed; raises `PackageError`."""
        state = identity(description_file(self.source.folder))
        if self.known is None or self.known[0] != state:
            try:
                self.known = state, self.source.describe()
            except PackageError as error:
                self.known = state, error
        if isinstance(self.known[1], PackageError):
            raise self.known[1]
        return self.known[1]

    def problem(self) -> str | None:
        """Why the model cannot be opened, in one line; None if nothing is known to be wrong."""
        if self.failure is not None:
            return str(self.failure[1])
        try:
            self.description()
        except PackageError as error:
            return str(self.cannot_open(error))
        return None

    def needed_bytes(self) -> int:
        """The estimate of the memory that the model takes; 0 if it is not known, as opening will then tell what is wrong."""
        try:
            return self.description().needed_bytes
        except PackageError:
            return 0

    def cannot_open(self, error: OnnxTextgenError) -> ModelError:
        """The error for clients, which need not know where the folder lies."""
        parent = self.source.folder.parent
        return ModelError(f"{self.name} cannot be opened: {str(error).replace(f'{parent}/', '') if parent.name else error}")

    def status(self) -> dict[str, Any]:
        """Return whether the model is open, in the form of llama.cpp's router."""
        if self.model is not None:
            return {"value": "loaded"}
        problem = self.problem()
        failed = {} if problem is None else {"failed": True, "problem": problem}
        return {"value": "loading" if self.opening is not None else "unloaded", **failed}

    def begin(self, model: Model) -> None:
        """Keep the open model."""
        more = () if self.source.stays_open else (description_file(model.folder),)
        self.files, self.failure, self.model = ChangedFiles(model, *more), None, model
