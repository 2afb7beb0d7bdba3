"""Image processors as graphs, which are compared with transformers': these need Pillow."""

import pytest

pytest.importorskip("PIL")
