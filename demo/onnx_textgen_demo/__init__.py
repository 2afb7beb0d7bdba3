"""See a model write in a web page; needs the extra `demo` (gradio)."""

import os

# Before gradio is first imported anywhere: it must not report home unless its user says otherwise.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
