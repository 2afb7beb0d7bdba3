"""Exports of models that read pictures, which need Pillow."""

import pytest

pytest.importorskip("PIL")
