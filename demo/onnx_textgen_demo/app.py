"""The page: a model to pick, and a tab for each thing to do with it. What a tab shows and does is in its own file."""

from __future__ import annotations

import gradio as gr
from gradio.events import api

from onnx_textgen.errors import OnnxTextgenError

from . import view
from .api import make_generate
from .limits import RUNNING, RUNS
from .shelf import Shelf
from .tabs import chat, compare, look_inside, measure, write

TABS = {"Write": write, "Look inside": look_inside, "Chat": chat, "Compare": compare, "Measure": measure}


def make_page(shelf: Shelf) -> gr.Blocks:
    """The page for the models of a shelf, not yet served. The first one is loaded here; raises what its loading raises."""
    first = shelf.model()
    page: gr.Blocks
    with gr.Blocks(title="onnx-textgen", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        api(make_generate(shelf), api_name="generate", **RUNS)
        with gr.Row(elem_id="top"):
            with gr.Column(scale=3, min_width=320):
                masthead = gr.HTML(view.masthead(shelf.names[0], first), apply_default_css=False)
            with gr.Column(scale=1, min_width=200, visible=len(shelf.names) > 1):
                picker = gr.Dropdown(shelf.names, label="Model", filterable=False, elem_id="picker")
        picked = picker.input(lambda name: describe(shelf, name), picker, masthead, **RUNNING)
        with gr.Tabs(overflow_behavior="wrap"):  # on a phone, a menu would hide some
            for name, tab in TABS.items():
                with gr.Tab(name):
                    tab.make_tab(shelf, picker, picked)
    return page


def describe(shelf: Shelf, name: str) -> str:
    """Load a model and say what it is, or why it cannot be had."""
    try:
        return view.masthead(name, shelf.model(name))
    except OnnxTextgenError as error:
        return view.cannot_load(name, str(error))
