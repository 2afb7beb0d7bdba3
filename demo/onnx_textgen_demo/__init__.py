"""A web page that generates text, chats, compares and looks inside a model; needs the extra `demo` (gradio)."""

import os

# Before the first import of gradio, so that it does not report usage unless the user allows it.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
