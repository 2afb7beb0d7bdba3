"""The page: a choice of models, and the tabs. Each tab is in its own module."""

from __future__ import annotations

import gradio as gr
from gradio.events import api

from onnx_textgen.errors import OnnxTextgenError

from . import view
from .api import make_generate
from .chat.own_tools import OwnTools
from .fetch_panel import OpenerOf, make_fetch_panel
from .limits import QUICK, RUNNING, RUNS
from .models import ModelRegistry
from .tabs import chat, compare, look_inside, measure, write

TABS = {"Write": write, "Look inside": look_inside, "Chat": chat, "Compare": compare, "Measure": measure}


def make_page(registry: ModelRegistry, *, opener_of: OpenerOf | None = None, own: OwnTools | None = None) -> gr.Blocks:
    """The page for the models of a registry, not yet served. Loads the first model, and raises the errors of loading it.

    opener_of: makes the function that loads a model which the page fetched; None: the page offers no models to fetch.
    own: functions that the model may call in the chat, each time after asking.
    """
    first = registry.model()
    page: gr.Blocks
    with gr.Blocks(title="onnx-textgen", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        api(make_generate(registry), api_name="generate", **RUNS)
        with gr.Row(elem_id="top"):
            with gr.Column(scale=3, min_width=320):
                masthead = gr.HTML(view.masthead(registry.names[0], first), apply_default_css=False)
            with gr.Column(scale=1, min_width=200, visible=len(registry.names) > 1 or opener_of is not None):
                picker = gr.Dropdown(registry.names, label="Model", filterable=False, elem_id="picker")
                if opener_of is not None:
                    make_fetch_panel(registry, picker, opener_of)
                    page.load(lambda: gr.update(choices=registry.names), None, picker, **QUICK)
        picked = picker.change(lambda name: describe(registry, name), picker, masthead, **RUNNING)
        with gr.Tabs(overflow_behavior="wrap"):  # on a phone, a menu would hide some tabs
            for name, tab in TABS.items():
                with gr.Tab(name):
                    if tab is chat:
                        chat.make_tab(registry, picker, picked, opener_of, own)
                    else:
                        tab.make_tab(registry, picker, picked)
    return page


def describe(registry: ModelRegistry, name: str) -> str:
    """Load a model and describe it, or say why it cannot be loaded."""
    try:
        return view.masthead(name, registry.model(name))
    except OnnxTextgenError as error:
        return view.cannot_load(name, str(error))
