"""The record of a device that a plug-in of ONNX Runtime adds: which package it is, and what it needs of the machine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Plugin:
    """A device that a package adds: a library with an execution provider, which ONNX Runtime loads when a model asks for it."""

    device: str
    """The device's name: `webgpu` in `load(device="webgpu")`."""
    distribution: str
    """The package, as pip names it."""
    module: str
    provider: str
    """The execution provider's name, as ONNX Runtime lists it."""
    needs: str
    """Hardware and drivers that it needs, for the message that it found no device."""
    state: str
    """Which packages run there, and what was tried."""
    library: str = "get_library_path"
    """The module's function that returns the path of its library."""

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install {self.distribution}"
