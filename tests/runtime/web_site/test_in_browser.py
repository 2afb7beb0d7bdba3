"""A site in a real browser: it writes what Python writes, proves itself, works offline, and refuses damaged files."""

import base64
import json
import shutil
import time
from pathlib import Path
from typing import ClassVar

import pytest

import onnx_textgen
from onnx_textgen.package.locate import find_package
from onnx_textgen.web_site import libraries
from onnx_textgen.web_site.building import build_site
from onnx_textgen.web_site.libraries import LibraryError, cached_libraries, read_libraries

pytest.importorskip("selenium")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from support import site_page
from support.axe import axe_script
from support.browser import chromium, element, elements, programs, requests_elsewhere, resize, wait_until
from support.drawn_numbers import drawn
from support.site_page import choose, device, hosted, problem_of, status, verdict, visit, weights_of, write

TINY = Path(__file__).parents[2] / "packages" / "ort"


@pytest.fixture(scope="module")
def browser():
    if None in programs():
        pytest.skip("chromium and chromedriver are not here")
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def make_site(tmp_path_factory):
    """Builds the site of a package, once for each."""
    try:
        cached_libraries()
    except LibraryError as error:
        pytest.skip(str(error))
    made = {}

    def make(package, **options):
        if package not in made:
            made[package] = build_site(
                package, tmp_path_factory.mktemp("site") / "site", prompts=["Once upon a time"], **options
            ).folder
        return made[package]

    return make


@pytest.fixture(scope="module")
def chat_package(tmp_path_factory):
    """A random float32 model with a chat template."""
    return site_page.with_chat_template(Path(shutil.copytree(TINY, tmp_path_factory.mktemp("chat") / "package")))


@pytest.fixture
def tiny_site(make_site, chat_package):
    return make_site(chat_package)


@pytest.fixture
def own_site(tiny_site, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_site, tmp_path / "site"))


def test_a_greedy_and_a_seeded_text_are_those_of_python(browser, tiny_site, chat_package):
    model = onnx_textgen.load(chat_package, device="cpu")
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=60)
        greedy = model.generate("Hello there", temperature=0, max_new_tokens=60)
        assert write(browser, "Hello there") == greedy.text
        choose(browser, temperature=1.2, top_p=0.9, top_k=50, repetition_penalty=1.1, seed=7)
        drawn = model.generate(
            "Hello there", temperature=1.2, top_p=0.9, top_k=50, repetition_penalty=1.1, seed=7, max_new_tokens=60
        )
        assert write(browser, "Hello there") == drawn.text != greedy.text
        assert "seed 7" in status(browser)


COPY = """
const done = arguments[0];
navigator.clipboard.writeText = async (text) => done(text);
[...document.querySelectorAll(".figures .copy")].at(-1).click();
"""


def copied(driver):
    """What the button of the last answer copies."""
    return driver.execute_async_script(COPY)


def test_a_chat_has_the_answers_of_python(browser, tiny_site, chat_package):
    model = onnx_textgen.load(chat_package, device="cpu")
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=30, system="Be brief.")
        element(browser, "#tab-chat").click()
        messages = [{"role": "system", "content": "Be brief."}]
        for number, text in enumerate(("Hello", "And then?"), start=1):
            element(browser, "#message").send_keys(text, Keys.ENTER)
            wait_until(browser, lambda: len(elements(browser, "#messages .figures")) == number, "an answer")  # noqa: B023
            messages.append({"role": "user", "content": text})
            answer = copied(browser)
            expected = model.generate(model.encode_chat(messages), temperature=0, max_new_tokens=30).text
            assert answer == expected
            messages.append({"role": "assistant", "content": answer})
        element(browser, "#retry").click()
        wait_until(
            browser, lambda: element(browser, "#retry").is_enabled() and element(browser, "#send").is_displayed(), "an answer"
        )
        assert copied(browser) == answer


def test_the_golden_runs_of_the_embedded_model_are_equal_in_the_browser(browser, make_site):
    with hosted(make_site(find_package("story"))) as host:
        visit(browser, host.address)
        # Small models replay them by themselves.
        wait_until(browser, lambda: "continuations equal" in verdict(browser), "the replay")
        assert verdict(browser).startswith("3 of 3 continuations equal (96 of 96 tokens the same)")
        assert device(browser).startswith("device WebAssembly, ")
        choose(browser, temperature=0, max_new_tokens=12)
        assert write(browser, "Once upon a time") == ", there was a little girl named Lily. She loved to"


def test_a_second_visit_fetches_nothing_and_a_third_needs_no_server(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        fetched = [path for path in host.paths if path.startswith(("/model/", "/lib/"))]
        assert sorted(fetched) == sorted(set(fetched))
        assert "/" + weights_of(tiny_site) in fetched
        host.paths.clear()
        visit(browser, host.address)
        assert set(host.paths) <= {"/service_worker.js"}  # the browser looks whether there is a newer one
        choose(browser, temperature=0, max_new_tokens=8)
        text = write(browser, "Hello")
        host.close()
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=8)
        assert (problem_of(browser), write(browser, "Hello")) == ("", text)


@pytest.mark.parametrize("handler", [site_page.SiteHandler, site_page.PlainHandler], ids=["with headers", "without headers"])
def test_threads_work_on_hosts_with_the_headers_and_without(browser, tiny_site, handler):
    with hosted(tiny_site, handler) as host:
        visit(browser, host.address)
        cores = browser.execute_script("return Math.min(navigator.hardwareConcurrency, 8)")
        assert browser.execute_script("return crossOriginIsolated") is True
        assert device(browser) == f"device WebAssembly, {cores} thread{'s' if cores > 1 else ''}"
        assert host.paths.count("/" + weights_of(tiny_site)) == 1


def test_a_browser_without_service_workers_runs_the_model_by_one_thread(browser, tiny_site):
    with hosted(tiny_site, site_page.PlainHandler) as host:
        hide = {"source": "delete Navigator.prototype.serviceWorker"}
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hide)
        try:
            visit(browser, host.address)
            assert device(browser) == "device WebAssembly, 1 thread"
            choose(browser, temperature=0, max_new_tokens=4)
            assert write(browser, "Hello")
        finally:
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_nothing_is_fetched_from_another_host(browser, tiny_site):
    with hosted(tiny_site) as host:
        browser.get_log("performance")
        visit(browser, host.address)
        assert write(browser, "Hello")
        assert requests_elsewhere(browser, host.address) == []


def test_weights_with_another_digest_are_refused(browser, own_site):
    weights = own_site / weights_of(own_site)
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    with hosted(own_site) as host:
        visit(browser, host.address)
        named = weights_of(own_site)
        assert problem_of(browser).startswith(f"{named} is not the file that this site was made with: its sha256 differs")
        assert not element(browser, "#generate").is_enabled()


def test_a_file_that_is_missing_on_the_server_is_named(browser, own_site):
    (own_site / "model" / "tokenizer.json").unlink()
    with hosted(own_site) as host:
        visit(browser, host.address)
        assert problem_of(browser) == (
            "model/tokenizer.json is missing on the server (404); the whole folder of the site has to be published"
        )


def test_bytes_that_were_damaged_in_the_browsers_storage_are_fetched_again(browser, tiny_site):
    damage = """
        const done = arguments[0];
        (async () => {
          const name = (await caches.keys()).find((each) => each.startsWith('onnx-textgen files'));
          const cache = await caches.open(name);
          for (const key of await cache.keys()) {
            const size = (await (await cache.match(key)).arrayBuffer()).byteLength;
            await cache.put(key, new Response(new Uint8Array(size)));
          }
        })().then(done);
    """
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        browser.execute_async_script(damage)
        host.paths.clear()
        visit(browser, host.address)
        assert "/" + weights_of(tiny_site) in host.paths
        assert problem_of(browser) == ""
        assert write(browser, "Hello")


def test_a_new_version_of_the_site_takes_the_place_of_the_old_one(browser, own_site, make_site, tmp_path, chat_package):
    with hosted(own_site) as host:
        visit(browser, host.address)
        shutil.rmtree(own_site)
        build_site(chat_package, own_site, prompts=["A new beginning"])
        visit(browser, host.address)  # the old one; the browser fetches the new one meanwhile
        wait_until(browser, lambda: browser.execute_async_script(IS_WAITING), "the new version")
        visit(browser, host.address)
        assert element(browser, "#prompt").get_attribute("value") == "A new beginning"


IS_WAITING = "navigator.serviceWorker.getRegistration().then((each) => arguments[0](Boolean(each.waiting)))"


def test_a_text_can_be_stopped_and_a_replay_gives_way_to_it(browser, make_site):
    with hosted(make_site(find_package("story"))) as host:
        visit(browser, host.address)
        choose(browser, max_new_tokens=500, temperature=1.5)
        browser.execute_script("const press = () => document.getElementById('generate').click(); press(); press()")
        wait_until(browser, lambda: len(elements(browser, "#text .token")) > 2, "tokens")
        element(browser, "#stop").click()
        wait_until(browser, lambda: "finished: cancelled (stopped by you)" in status(browser), "the end")
        assert "continuations" in verdict(browser)  # equal, or stopped by the text
        assert element(browser, "#generate").is_enabled()
        assert browser.switch_to.active_element == element(browser, "#generate")  # where a keyboard continues


def test_a_token_shows_its_alternatives_and_another_one_continues_the_text(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=10)
        write(browser, "Hello")
        tokens = elements(browser, "#text .token")
        assert element(browser, "#text .token[aria-current]") == tokens[-1]
        ActionChains(browser).move_to_element(tokens[2]).perform()
        wait_until(browser, lambda: "as token 3," in element(browser, "#bars").text, "the alternatives under the pointer")
        assert len(elements(browser, "#bars tr")) == 10
        assert element(browser, "#bars tr").get_attribute("class") == "drawn"
        ActionChains(browser).move_to_element(element(browser, "#name")).perform()
        wait_until(browser, lambda: f"as token {len(tokens)}," in element(browser, "#bars").text, "those of the selected token")
        element(browser, "#text .sheet").send_keys(Keys.ARROW_LEFT)
        assert f"as token {len(tokens) - 1}," in element(browser, "#bars").text
        elements(browser, "#bars th button")[0].click()
        wait_until(browser, lambda: "finished" in status(browser), "the other text")
        places = [each.get_attribute("data-place") for each in elements(browser, "#text .token")]
        assert places == [str(place) for place in range(len(places))]
        assert len(places) == len(tokens) - 1 + 10


def test_wrong_values_in_the_settings_are_named(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        choose(browser, temperature=9)
        write(browser, "Hello")
        assert status(browser) == "Temperature in the settings should be from 0 to 2"
        choose(browser, temperature=1, seed="x")
        write(browser, "Hello")
        assert status(browser).startswith("the seed in the settings should be a whole number")


def test_an_empty_prompt_is_refused_with_a_line(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        write(browser, "")
        assert status(browser) == "the prompt is empty; write how the text begins"


def test_a_browser_without_simd_and_a_model_without_memory_get_a_line_each(browser, tiny_site):
    with hosted(tiny_site) as host:
        hide = {"source": "WebAssembly.validate = () => false"}
        script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", hide)
        try:
            visit(browser, host.address)
            assert problem_of(browser).startswith("this browser's WebAssembly has no SIMD instructions")
        finally:
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        explain = "import('./site/problems.js').then(({ explain }) => arguments[1](explain(new Error(arguments[0]))))"
        for words in ("Array buffer allocation failed", "onnxruntime cannot open the graph (std::bad_alloc)"):
            assert browser.execute_async_script(explain, words).startswith(
                "there is not enough memory for this model in this browser"
            )
        assert browser.execute_async_script(explain, "first\nsecond") == "first"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_nothing_and_the_page_fits(browser, tiny_site, scheme, width):
    script = axe_script()
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    resize(browser, width, 900)
    try:
        with hosted(tiny_site) as host:
            visit(browser, host.address)
            browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script})  # the page's policy allows no other script
            found = {}

            def look(name):
                seen = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
                found[name] = [f"{each['id']}: {node['html'][:160]}" for each in seen for node in each["nodes"]]
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name

            write(browser, "Hello")
            look("write")
            element(browser, "#tab-chat").click()
            element(browser, "#message").send_keys("Hello", Keys.ENTER)
            wait_until(browser, lambda: elements(browser, "#messages .figures"), "an answer")
            look("chat")
            element(browser, "#tab-proof").click()
            wait_until(browser, lambda: "continuations" in verdict(browser), "the replay")
            look("proof")
            element(browser, "#open-settings").click()
            look("settings")
            assert {name: each for name, each in found.items() if each} == {}
    finally:
        resize(browser, 1280, 1100)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})


def test_tabs_are_reached_by_arrow_keys(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        element(browser, "#tab-write").send_keys(Keys.ARROW_LEFT)
        assert browser.switch_to.active_element.get_attribute("id") == "tab-proof"
        assert element(browser, "#proof").is_displayed()
        assert not element(browser, "#write").is_displayed()


class CdnHandler(site_page.SiteHandler):
    """A host of libraries: other pages may read what it has."""

    isolation: ClassVar = {"Access-Control-Allow-Origin": "*"}


def test_libraries_of_a_cdn_are_compared_with_their_digests_and_kept(browser, chat_package, tmp_path, monkeypatch):
    for each in read_libraries().values():
        target = tmp_path / "cdn" / f"{each.package}@{each.version}" / each.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cached_libraries() / each.local_name, target)
    with hosted(tmp_path / "cdn", CdnHandler) as cdn:
        monkeypatch.setattr(libraries, "CDN", cdn.address)
        site = build_site(chat_package, tmp_path / "site", cdn=True).folder
        with hosted(site) as host:
            visit(browser, host.address)
            assert write(browser, "Hello")
            assert device(browser).startswith("device WebAssembly, ")
            assert len(cdn.paths) == 5
            cdn.close()
            visit(browser, host.address)  # nothing is fetched again
            assert problem_of(browser) == ""
    jinja = next((tmp_path / "cdn").rglob("index.js"))
    jinja.write_text(jinja.read_text(encoding="utf-8").replace("Template", "Tempiate"), encoding="utf-8")
    with hosted(tmp_path / "cdn", CdnHandler) as cdn:
        monkeypatch.setattr(libraries, "CDN", cdn.address)
        site = build_site(chat_package, tmp_path / "other", cdn=True).folder
        with hosted(site) as host:
            visit(browser, host.address)
            said = wait_until(browser, lambda: problem_of(browser), "the problem")  # again, if the page loads itself a second time
            assert "index.js is not the file that this site was made with: its sha256 differs" in said


class DroppingHandler(site_page.SiteHandler):
    """A host whose connection drops after a third of the weights, and that sends the rest of a file if it `has_ranges`."""

    has_ranges: ClassVar = True
    weights: ClassVar = ""
    ranges: ClassVar = []

    def do_GET(self):  # noqa: N802  (named by the base class)
        wanted = self.headers["Range"]
        if self.path != self.weights or len(self.ranges) == 3:
            super().do_GET()
            return
        self.ranges.append(wanted)
        content = Path(self.translate_path(self.path)).read_bytes()
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.has_ranges else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        part = len(content) if len(self.ranges) == 3 else begin + len(content) // 3
        self.wfile.write(content[begin:part])
        self.wfile.flush()
        time.sleep(0.3)  # a browser may forget what came together with the end of the connection
        self.close_connection = True


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_download_whose_connection_drops_continues_where_the_host_sends_the_rest(browser, tiny_site, has_ranges):
    weights = "/" + weights_of(tiny_site)
    given = {"has_ranges": has_ranges, "weights": weights, "ranges": []}
    handler = type("Dropping", (DroppingHandler,), given)
    with hosted(tiny_site, handler) as host:
        visit(browser, host.address)
        assert problem_of(browser) == ""
        assert host.paths.count(weights) == 3
        begins = [0 if wanted is None else int(wanted.removeprefix("bytes=").removesuffix("-")) for wanted in handler.ranges]
        assert begins[0] == 0 < begins[1]
        assert (begins[1] < begins[2]) is has_ranges
        choose(browser, temperature=0, max_new_tokens=4)
        assert write(browser, "Hello")


SHOW = """
const [text, marks, isThinking, done] = arguments;
Promise.all([import("./site/answer_view.js"), import("./site/markdown.js"), fetch("site.json").then((each) => each.json())]).then(
  ([{ AnswerView }, { Markdown }, { libraries }]) => {
    const view = new AnswerView(new Markdown(document.baseURI, libraries.marked), marks);
    view.isThinking = isThinking;
    document.body.append(view.element);
    let waiting = 0;
    for (let length = 1; length <= text.length; length++) view.show(text.slice(0, length), true);
    view.show(text, false);
    view.element.addEventListener("drawn", () => setTimeout(() => done(view.element.innerHTML), 200));
  });
"""
MARKS = {
    "thinking": {"open": ["<think>"], "close": ["</think>"]},
    "call": {"open": ["<tool_call>"], "close": ["</tool_call>"]},
}
ATTACK = """**bold** <img src=x onerror=alert(1)> [a](javascript:alert(1)) ![b](https://example.org/b.png) [c](https://example.org/)

```python
print("<b>")
```

| a | b |
|---|--:|
| 1 | `2` |

- one
- two
"""


def shown(driver, text, marks=None, *, thinks=False):
    return driver.execute_async_script(SHOW, text, marks or {}, thinks)


def test_markdown_of_an_answer_becomes_its_elements_and_no_others(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        html = shown(browser, ATTACK)
    assert "<strong>bold</strong>" in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "<img" not in html and "javascript:" not in html
    assert '<a href="https://example.org/b.png" target="_blank" rel="noopener noreferrer">b</a>' in html
    assert '<pre tabindex="0"><code>print("&lt;b&gt;")</code></pre>' in html
    assert 'aria-label="Copy code"' in html
    assert '<td class="right"><code>2</code></td>' in html
    assert "<li><span>one</span></li>" in html


def test_thinking_is_folded_and_a_call_is_a_card(browser, tiny_site):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        whole = shown(browser, f"<think>\nIt may rain.\n</think>\n\nIt **rains**. {call}", MARKS)
        begun = shown(browser, "It may rain.</think>It rains.", MARKS, thinks=True)
        unknown = shown(browser, "<think>a</think>")
    assert "<summary>Thought</summary>" in whole and "<p>It may rain.</p>" in whole
    assert "<p>It <strong>rains</strong>.</p>" in whole
    assert "Call of a function <code>weather</code>" in whole and '"city": "Bern"' in whole
    assert "tool_call" not in whole and "&lt;think" not in whole
    assert begun.index("It may rain.") < begun.index("</details>") < begun.index("It rains.")
    assert "&lt;think&gt;" in unknown


def test_an_answer_that_the_template_begins_with_thinking_is_folded_from_its_first_token(browser, make_site, tmp_path):
    package = Path(shutil.copytree(TINY, tmp_path / "package"))
    site_page.with_chat_template(package, site_page.TEMPLATE.replace("<assistant>", "<assistant><think>\n"))
    fields = {"reasoning_content": {"open": "<think>", "close": "</think>"}, "content": {}}
    site_page.with_file(package, "response_template.json", json.dumps({"start_anchor": "<assistant>", "fields": fields}))
    with hosted(make_site(package)) as host:
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=8)
        element(browser, "#tab-chat").click()
        element(browser, "#message").send_keys("Hello", Keys.ENTER)
        wait_until(browser, lambda: elements(browser, "#messages .figures"), "an answer")
        assert element(browser, "#messages details summary").text == "Thought"
        assert not element(browser, "#messages details .markdown").is_displayed()
        model = onnx_textgen.load(package, device="cpu")
        prompt = model.encode_chat([{"role": "user", "content": "Hello"}])
        assert copied(browser) == model.generate(prompt, temperature=0, max_new_tokens=8).text


PASTE = """
const bytes = Uint8Array.from(atob(arguments[0]), (each) => each.charCodeAt(0));
const given = new DataTransfer();
given.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
if (arguments[2]) given.items.add(arguments[2], "text/plain");
return arguments[1].dispatchEvent(new ClipboardEvent("paste", { clipboardData: given, bubbles: true, cancelable: true }));
"""


def test_a_chat_reads_pictures_that_are_chosen_and_pasted(browser, make_site, tmp_path):
    model = onnx_textgen.load("digits", device="cpu", threads=1)
    (tmp_path / "number.png").write_bytes(drawn("407"))
    with hosted(make_site(find_package("digits"))) as host:
        visit(browser, host.address)
        choose(browser, temperature=0, max_new_tokens=6)
        element(browser, "#tab-chat").click()
        assert element(browser, "#add-picture").is_displayed()
        (tmp_path / "no.png").write_bytes(b"no picture")
        element(browser, "#picture-files").send_keys(str(tmp_path / "no.png"))
        wait_until(browser, lambda: "cannot be read as a picture" in element(browser, "#chat-status").text, "a line")
        element(browser, "#picture-files").send_keys(str(tmp_path / "number.png"))
        wait_until(browser, lambda: len(elements(browser, "#pictures img")) == 1, "the picture")
        ask(browser, "What number is this?", 1)
        assert copied(browser) == "407" and len(elements(browser, "#messages .user img")) == 1
        assert browser.execute_script("return document.querySelector('#messages img').naturalWidth") == 64
        browser.execute_script(PASTE, base64.b64encode(drawn("58")).decode(), element(browser, "#message"))
        wait_until(browser, lambda: len(elements(browser, "#pictures img")) == 1, "the picture")
        browser.execute_script(PASTE, base64.b64encode(drawn("9")).decode(), element(browser, "#message"))
        wait_until(browser, lambda: len(elements(browser, "#pictures img")) == 2, "the pictures")
        elements(browser, "#pictures button")[1].click()
        ask(browser, "What number is this?", 2)
        said = [{"type": "image", "image": drawn("407")}, {"type": "text", "text": "What number is this?"}]
        more = [{"type": "image", "image": drawn("58")}, {"type": "text", "text": "What number is this?"}]
        chat = [{"role": "user", "content": said}, {"role": "assistant", "content": "407"}, {"role": "user", "content": more}]
        assert copied(browser) == model.chat(chat, temperature=0, max_new_tokens=6).text
        host.paths.clear()
        visit(browser, host.address)
        assert not [path for path in host.paths if path.startswith("/model/")]


def test_a_model_of_text_offers_no_pictures(browser, tiny_site):
    with hosted(tiny_site) as host:
        visit(browser, host.address)
        element(browser, "#tab-chat").click()
        assert not element(browser, "#add-picture").is_displayed()
        coded, field = base64.b64encode(drawn("58")).decode(), element(browser, "#message")
        assert browser.execute_script(PASTE, coded, field, "")  # the browser goes on with the event


def test_text_with_a_picture_of_it_is_pasted_as_text(browser, make_site):
    with hosted(make_site(find_package("digits"))) as host:
        visit(browser, host.address)
        element(browser, "#tab-chat").click()
        coded, field = base64.b64encode(drawn("58")).decode(), element(browser, "#message")
        assert browser.execute_script(PASTE, coded, field, "a table")
        assert not elements(browser, "#pictures img")
        assert not browser.execute_script(PASTE, coded, field, "")
        wait_until(browser, lambda: len(elements(browser, "#pictures img")) == 1, "the picture")


def ask(browser, text, answers):
    element(browser, "#message").send_keys(text, Keys.ENTER)
    wait_until(browser, lambda: len(elements(browser, "#messages .figures")) == answers, "an answer")
