"""Around imports of names that move: of transformers, and of what torch and onnxscript keep to themselves.

They are imported where they are needed and nowhere else, so that a module of one's own is exported without transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx_textgen.requirements import wrong_version

from .errors import ExportError


@contextlib.contextmanager
def named_versions() -> Iterator[None]:
    """Raises `ExportError` for a library that is missing, too old or too new, and says which version does."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (reason := wrong_version(error)) is not None:
            raise ExportError(reason) from error
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
            raise ExportError('a checkpoint needs transformers; install it with: pip install "onnx-textgen[export]"') from error
        raise
