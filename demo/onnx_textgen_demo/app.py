"""The page: a choice of models, and the tabs. Each tab is in its own module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.events import api

from onnx_textgen.errors import OnnxTextgenError

from . import view
from .api import make_generate
from .chat.own_tools import OwnTools
from .encoder_decoders import can_chat
from .fetch_panel import OpenerOf, make_fetch_panel
from .limits import QUICK, RUNNING, RUNS
from .models import ModelRegistry
from .tabs import chat, compare, look_inside, measure, transcribe, write
from .tabs.transcribe import reads_sound

if TYPE_CHECKING:
    from onnx_textgen import Model

TABS = {"Write": write, "Look inside": look_inside, "Chat": chat, "Compare": compare, "Measure": measure}
SPEECH_TABS = {"Transcribe": transcribe}
"""Those of a model that reads sound, which has a use for no other."""
ALL_TABS = {**TABS, **SPEECH_TABS}


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
            masthead = gr.HTML(view.masthead(registry.names[0], first), apply_default_css=False, elem_id="masthead")
            has_choice = len(registry.names) > 1 or opener_of is not None
            picker = gr.Dropdown(
                registry.names, label="Model", show_label=False, filterable=False, visible=has_choice, elem_id="picker"
            )
            if opener_of is not None:
                make_fetch_panel(registry, picker, opener_of)
        wanted = gr.Textbox(visible=False)  # the model that the address names
        page.load(lambda name: offered(registry, name), wanted, picker, js="() => inAddress('model')", **QUICK)
        picked = picker.change(lambda name: describe(registry, name), picker, masthead, **RUNNING)
        picker.change(None, picker, None, js="(name) => { keepInAddress('model', name) }", **QUICK)
        # On a phone, a menu would hide some tabs.
        with gr.Tabs(selected=opened_at(first), overflow_behavior="wrap", elem_id="tabs") as tabs:
            made = []
            for name, tab in ALL_TABS.items():
                with gr.Tab(name, id=name, visible=is_shown(name, first)) as each:
                    made.append(each)
                    if tab is chat:
                        chat.make_tab(registry, picker, picked, opener_of, own)
                    else:
                        tab.make_tab(registry, picker, picked)
        hears = gr.State(reads_sound(first))
        picked.then(lambda name, heard: shown_tabs(registry.loaded(name), heard), [picker, hears], [hears, tabs, *made], **QUICK)
        page.load(None, js="showTabOfAddress", **QUICK)
    return page


def opened_at(model: Model) -> str:
    """The tab that a page opens at."""
    return next(iter(SPEECH_TABS)) if reads_sound(model) else "Chat" if can_chat(model) else "Write"


def is_shown(tab: str, model: Model) -> bool:
    """Whether a model has a use for a tab."""
    return (tab in SPEECH_TABS) == reads_sound(model)


def shown_tabs(model: Model | None, heard: bool) -> list[Any]:
    """Updates after a model was picked: whether it reads sound, the tab that is opened, and which tabs there are.

    heard: whether the model before it reads sound.
    """
    if model is None:
        return [gr.skip()] * (2 + len(ALL_TABS))
    hears = reads_sound(model)
    opened = gr.skip() if hears == heard else gr.update(selected=opened_at(model))
    # Gradio 6.31 would still show a tab with visible=False that was never opened.
    return [hears, opened, *(gr.update(visible=is_shown(tab, model) or "hidden") for tab in ALL_TABS)]


def offered(registry: ModelRegistry, name: object) -> Any:  # noqa: ANN401 - an update of Gradio's
    """The choices of models when the page is loaded, and the one that its address names."""
    known: dict[str, Any] = {"value": name} if name in registry.names else {}
    return gr.update(choices=registry.names, **known)


def describe(registry: ModelRegistry, name: str) -> str:
    """Load a model and describe it, or say why it cannot be loaded."""
    try:
        return view.masthead(name, registry.model(name))
    except OnnxTextgenError as error:
        return view.cannot_load(name, str(error))
