"""Sites of `onnx-textgen site`, served by hosts of several kinds, and what tests do with the page in a real browser."""

import contextlib
import json
import threading
from pathlib import Path
from typing import ClassVar

from onnx_textgen.hosts import listen
from onnx_textgen.package.integrity import file_record
from onnx_textgen.package.manifest import CHAT_TEMPLATE, MANIFEST, manifest_digest
from onnx_textgen.web_site.preview import SiteHandler, SiteServer
from support.browser import element, elements, wait_until

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


class PlainHandler(SiteHandler):
    """A host that cannot send the headers for threads, as GitHub Pages."""

    isolation: ClassVar = {}


class Host:
    """A server of a site, and the paths that browsers asked it for."""

    def __init__(self, folder, handler=SiteHandler):
        paths = self.paths = []

        class Recording(handler):
            def do_GET(self):  # noqa: N802  (named by the base class)
                paths.append(self.path)
                super().do_GET()

        (listener,) = listen("127.0.0.1", 0)
        self.server = SiteServer(Path(folder), listener, Recording)
        self.address = self.server.address
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        if self.thread.is_alive():
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()


@contextlib.contextmanager
def hosted(folder, handler=SiteHandler):
    host = Host(folder, handler)
    try:
        yield host
    finally:
        host.close()


def with_chat_template(package, template=TEMPLATE):
    """Give a copied package a chat template, and a manifest that lists it."""
    return with_file(package, CHAT_TEMPLATE, template)


def with_file(package, name, text):
    """Give a copied package a file, and a manifest that lists it."""
    (package / name).write_text(text, encoding="utf-8")
    manifest = json.loads((package / MANIFEST).read_text(encoding="utf-8"))
    record = file_record(package / name)
    manifest["files"][name] = {"size": record.size, "sha256": record.sha256}
    manifest["sha256"] = manifest_digest(manifest)
    (package / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return package


def weights_of(site):
    """Where a site has the model's weights, relative to it."""
    files = json.loads((site / "site.json").read_text(encoding="utf-8"))["files"]
    return max(files.values(), key=lambda each: each["size"])["url"]


def problem_of(driver):
    """What the page says instead of opening the model; empty if it has no problem."""
    return element(driver, "#load-problem").text


def visit(driver, address):
    """Open a site, and wait until its model is open, or a problem is shown."""
    driver.get(address)
    wait_for_model(driver)


IS_SETTLED = """
    const find = (id) => document.getElementById(id);
    return Boolean(find('generate') && (!find('generate').disabled || find('load-problem').textContent));
"""


def wait_for_model(driver):
    """The page may load itself a second time meanwhile."""
    wait_until(driver, lambda: driver.execute_script(IS_SETTLED), "the model")


def choose(driver, **options):
    """Set options in the drawer."""
    for name, value in options.items():
        driver.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))


def write(driver, prompt):
    """Generate from a prompt; returns the new text."""
    driver.execute_script("document.getElementById('prompt').value = arguments[0]", prompt)
    element(driver, "#generate").click()
    wait_until(driver, lambda: "finished" in status(driver) or elements(driver, "#status .problem"), "a text")
    return driver.execute_script("return document.querySelector('#text .new')?.textContent ?? ''")


def status(driver):
    return element(driver, "#status").text


def verdict(driver):
    """The result of the replay, which the tab Proof shows when it has ended."""
    found = wait_until(driver, lambda: driver.execute_script("return document.querySelector('#verdict').textContent"), "a verdict")
    return found


def device(driver):
    """What the model runs on, as the page says."""
    return next(each.text for each in elements(driver, "#chips li") if each.text.startswith("device"))
