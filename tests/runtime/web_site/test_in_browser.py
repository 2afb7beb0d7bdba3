"""A site in a real browser: it writes what Python writes, proves itself, works offline, and refuses damaged files."""

import json
import shutil
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
from support.browser import chromium, element, elements, programs, resize, wait_until
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
            answer = browser.execute_script("return [...document.querySelectorAll('.assistant .said')].at(-1).textContent")
            expected = model.generate(model.encode_chat(messages), temperature=0, max_new_tokens=30).text
            assert answer == expected
            messages.append({"role": "assistant", "content": answer})
        element(browser, "#retry").click()
        wait_until(
            browser, lambda: element(browser, "#retry").is_enabled() and element(browser, "#send").is_displayed(), "an answer"
        )
        assert browser.execute_script("return [...document.querySelectorAll('.assistant .said')].at(-1).textContent") == answer


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
        events = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
        urls = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
        assert urls
        assert [url for url in urls if not url.startswith((host.address, f"blob:{host.address}", "data:"))] == []


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
        assert "the prompt is empty" in status(browser)


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
            assert len(cdn.paths) == 4
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
            assert "index.js is not the file that this site was made with: its sha256 differs" in problem_of(browser)
