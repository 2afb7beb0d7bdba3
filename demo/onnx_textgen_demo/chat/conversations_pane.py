"""The list of conversations, which the browser keeps in its local storage; this server keeps none.

The component's value is the open conversation as JSON: what Python returns is kept, and what the reader picks comes to Python.
"""

from __future__ import annotations

from pathlib import Path

SCRIPTS = ("conversation_merge.js", "conversations_pane.js")
EVENTS = "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in SCRIPTS)

TEMPLATE = """
<div class="chat-head">
  <button type="button" data-does="list" aria-expanded="false" aria-controls="conversation-list">Conversations</button>
  <button type="button" data-does="new" title="Ctrl+Shift+O" aria-keyshortcuts="Control+Shift+O">New chat</button>
  <button type="button" data-does="settings" aria-expanded="false" aria-controls="chat-settings">Settings</button>
</div>
<nav id="conversation-list" aria-label="Conversations">
  <ul></ul>
  <p class="conversations-note" role="status"></p>
  <div class="conversations-files">
    <button type="button" data-does="json">Export JSON</button>
    <button type="button" data-does="markdown">Export Markdown</button>
    <button type="button" data-does="import">Import</button>
    <input type="file" accept=".json,application/json" hidden aria-label="A conversation to import">
  </div>
</nav>
"""
"""Without the conversations, which the script adds; it contains nothing that Gradio's templates would replace."""
