"""A window that continues a text, with Tk from the standard library: the model runs in a thread, and the window stays responsive.

pip install onnx-textgen
python examples/desktop_window.py
"""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from tkinter import ttk

import onnx_textgen

POLL_MILLISECONDS = 30


class Window:
    """A text that a person and the model write together."""

    def __init__(self, root: tk.Tk, model: onnx_textgen.Model) -> None:
        self.root, self.model = root, model
        self.news = queue.SimpleQueue[str | None]()
        """Pieces of text from the working thread, and None at their end: only the window's own thread may touch the window."""
        self.cancel = onnx_textgen.Cancellation()
        root.title(f"onnx-textgen: {model.manifest.name}")
        self.text = tk.Text(root, wrap="word", width=72, height=20, font="TkTextFont", padx=12, pady=12, undo=True)
        self.text.insert("1.0", "Once upon a time")
        self.text.pack(fill="both", expand=True)
        bar = ttk.Frame(root, padding=8)
        bar.pack(fill="x")
        self.go, self.stop = ttk.Button(bar, text="Continue", command=self.start), ttk.Button(bar, text="Stop", command=self.end)
        self.go.pack(side="left")
        self.stop.pack(side="left", padx=8)
        self.note = ttk.Label(bar)
        self.note.pack(side="right")
        self.stop.state(["disabled"])
        root.protocol("WM_DELETE_WINDOW", self.close)

    def start(self) -> None:
        """Let the model continue the text."""
        self.cancel = onnx_textgen.Cancellation()
        self.go.state(["disabled"])
        self.stop.state(["!disabled"])
        self.note["text"] = "writing ..."
        prompt = self.text.get("1.0", "end-1c")
        threading.Thread(target=self.write, args=(prompt, self.cancel), daemon=True).start()
        self.look()

    def write(self, prompt: str, cancel: onnx_textgen.Cancellation) -> None:
        """Generate, in a separate thread."""
        try:
            for chunk in self.model.stream(prompt, cancel=cancel, max_new_tokens=120):
                self.news.put(chunk.text)
        except onnx_textgen.OnnxTextgenError as error:
            self.news.put(f"\n[{error}]\n")
        self.news.put(None)

    def look(self) -> None:
        """Take what the working thread has brought."""
        while not self.news.empty():
            piece = self.news.get()
            if piece is None:
                self.go.state(["!disabled"])
                self.stop.state(["disabled"])
                self.note["text"] = "ready"
                return
            self.text.insert("end", piece)
            self.text.see("end")
        self.root.after(POLL_MILLISECONDS, self.look)

    def end(self) -> None:
        """End the text where it is."""
        self.cancel.cancel()

    def close(self) -> None:
        """End the work, then the window."""
        self.end()
        self.root.destroy()


def main() -> None:
    """Open the window."""
    root = tk.Tk()
    Window(root, onnx_textgen.load())
    root.mainloop()


if __name__ == "__main__":
    main()
