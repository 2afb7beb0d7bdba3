"""What PyInstaller needs to know of the library; it finds this folder by an entry point."""

from pathlib import Path


def hook_dirs() -> list[str]:
    """The folder of the hooks."""
    return [str(Path(__file__).parent)]
