"""The page at `/`."""

import re
from html.parser import HTMLParser
from pathlib import Path

import onnx_textgen
from onnx_textgen import Model
from onnx_textgen_server.pool.model_pool import ModelPool
from onnx_textgen_server.pool.sources import FolderSource, OpenSource
from support import patient_http
from support.live_server import served, served_pool

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """The text of a page; raises for tags that do not match, and collects addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_it_names_models_routes_and_calls_and_loads_nothing(story: Model) -> None:
    with served({"story": story}) as (url, _):
        answer = patient_http.get(url)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        page = Reader(answer.text)
        assert page.addresses == ["openapi.json"]
        assert "script" not in page.tags
        for said in (
            "story",
            "int8, 512 tokens, loaded",
            "POST /v1/completions",
            "GET /v1/models/NAME",
            f"curl {url}/v1/completions",
        ):
            assert said in page.text
        assert "{" not in re.sub(r"\{[^{}]*\}", "", page.text), "no part of the template is left"
        for path in re.findall(r"(?:GET|POST) (/[\w/]*)", page.text):
            assert patient_http.get(url + path.rstrip("/")).status_code in (200, 404, 405)
        (block,) = re.findall(r"import openai\n.*?print\(.*?\)\n", page.text + "\n", flags=re.DOTALL)
        exec(compile(block, "home.html", "exec"), names := {})  # noqa: S102 - our own page
        assert names["answer"].usage.completion_tokens == 40
        names["client"].close()


def test_names_are_escaped_and_broken_models_are_told(story: Model, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"<i>": 1}', encoding="utf-8")
    odd = "<script>alert('1')</script>&amp;\"\\"
    pool = ModelPool([FolderSource("<b>broken</b>", tmp_path), OpenSource(odd, story)])
    with served_pool(pool) as (url, _):
        page = Reader(patient_http.get(url).text)
        assert "script" not in page.tags
        assert "b" not in page.tags
        assert odd in page.text
        assert "<b>broken</b> cannot be opened: " in page.text
        assert "'\\''1'\\''" in page.text, "a quote that the shell reads"


def test_with_a_key_it_needs_none_and_shows_no_model(story: Model) -> None:
    with served({"private-name": story}, api_key="secret") as (url, _):
        answer = patient_http.get(url)
        assert answer.status_code == 200
        assert "private-name" not in answer.text
        assert "secret" not in answer.text
        assert "Authorization: Bearer KEY" in answer.text
        assert patient_http.get(f"{url}/v1/models").status_code == 401


def test_a_page_of_no_open_model_opens_none() -> None:
    pool = ModelPool([FolderSource("story", onnx_textgen.load().folder)])
    with served_pool(pool) as (url, _):
        assert "int8, 512 tokens, unloaded" in Reader(patient_http.get(url).text).text
        assert not pool.loaded


def test_it_is_only_read(live: tuple) -> None:
    assert patient_http.post(live[0]).status_code == 405
