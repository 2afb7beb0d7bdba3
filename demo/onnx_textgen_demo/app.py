"""The page: a choice of models, and the tabs. Each tab is in its own module."""

from __future__ import annotations

import gradio as gr
from gradio.events import api

from onnx_textgen.errors import OnnxTextgenError

from . import view
from .api import make_generate
from .limits import RUNNING, RUNS
from .models import ModelRegistry
from .tabs import chat, compare, look_inside, measure, write

TABS = {"Write": write, "Look inside": look_inside, "Chat": chat, "Compare": compare, "Measure": measure}


def make_page(registry: ModelRegistry) -> gr.Blocks:
    """The page for the models of a registry, not yet served. Loads the first model, and raises the errors of loading it."""
    first = registry.model()
    page: gr.Blocks
    with gr.Blocks(title="onnx-textgen", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        api(make_generate(registry), api_name="generate", **RUNS)
        with gr.Row(elem_id="top"):
            with gr.Column(scale=3, min_width=320):
                masthead = gr.HTML(view.masthead(registry.names[0], first), apply_default_css=False)
            with gr.Column(scale=1, min_width=200, visible=len(registry.names) > 1):
                picker = gr.Dropdown(registry.names, label="Model", filterable=False, elem_id="picker")
        picked = picker.input(lambda name: describe(registry, name), picker, masthead, **RUNNING)
        with gr.Tabs(overflow_behavior="wrap"):  # on a phone, a menu would hide some tabs
            for name, tab in TABS.items():
                with gr.Tab(name):
                    tab.make_tab(registry, picker, picked)
    return page


def describe(registry: ModelRegistry, name: str) -> str:
    """Load a model and describe it, or say why it cannot be loaded."""
    try:
        return view.masthead(name, registry.model(name))
    except OnnxTextgenError as error:
        return view.cannot_load(name, str(error))
