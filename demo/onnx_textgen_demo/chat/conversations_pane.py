"""The list of conversations, which the browser keeps in its local storage; this server keeps none.

The component's value is the open conversation as JSON: what Python returns is kept, and what the reader picks comes to Python.
"""

from __future__ import annotations

from pathlib import Path

SCRIPTS = (
    "conversation_store.js",
    "conversation_merge.js",
    "pressed_twice.js",
    "conversation_list.js",
    "conversation_files.js",
    "conversations_pane.js",
)
EVENTS = "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in SCRIPTS)

KEYS = {
    "Enter": "send the message",
    "Shift + Enter": "begin a line",
    "↑": "in the empty field: edit your last message",
    "Esc": "stop the answer, or close what is open",
    "Ctrl + Shift + O": "new chat",
    "Ctrl + K": "search the conversations",
    "Ctrl + Shift + E": "rename the conversation",
    "Ctrl + .": "settings",
    "Shift + Esc": "go to the field",
    "? or Ctrl + /": "these keys",
}
"""What keys do; `turns_pane.js` and `conversations_pane.js` do it."""


def keys_html() -> str:
    """The list of keys, which opens over the page."""
    rows = "".join(f'<tr><th scope="row"><kbd>{key}</kbd></th><td>{does}</td></tr>' for key, does in KEYS.items())
    close = '<button type="button" class="glyph glyph-close" data-does="keys-close" aria-label="Close"></button>'
    return (
        f'<dialog aria-labelledby="keys-title"><header><h2 id="keys-title">Keys</h2>{close}</header>'
        f"<table><tbody>{rows}</tbody></table><p>On a Mac, ⌘ instead of Ctrl does the same.</p></dialog>"
    )


TEMPLATE = f"""
<div class="chat-head">
  <button type="button" data-does="list" aria-expanded="false" aria-controls="conversation-list">Conversations</button>
  <button type="button" data-does="new" title="Ctrl+Shift+O" aria-keyshortcuts="Control+Shift+O">New chat</button>
  <button type="button" data-does="settings" aria-expanded="false" aria-controls="chat-settings">Settings</button>
  <button type="button" class="glyph glyph-keys" data-does="keys" aria-label="Keys" title="?" aria-haspopup="dialog"></button>
</div>
<nav id="conversation-list" aria-label="Conversations">
  <input type="search" placeholder="Search" title="Ctrl+K" aria-label="Search conversations" aria-keyshortcuts="Control+K" hidden>
  <p class="conversations-note" role="status"></p>
  <ul></ul>
  <div class="conversations-files">
    <button type="button" data-does="json">Export JSON</button>
    <button type="button" data-does="markdown">Export Markdown</button>
    <button type="button" data-does="import">Import</button>
    <input type="file" accept=".json,application/json" hidden aria-label="A conversation to import">
  </div>
</nav>
{keys_html()}
"""
"""Without the conversations, which the script adds; it contains nothing that Gradio's templates would replace."""
