"""Markdown of a model becomes HTML that loads nothing, runs nothing, and says what the text says."""

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from onnx_textgen_demo.chat import markdown
from onnx_textgen_demo.chat.markdown import is_safe_link, markdown_html

TAGS = {
    *("p", "em", "strong", "s", "code", "pre", "span", "div", "button", "a", "small", "blockquote"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "br", "hr"),
}
ATTRIBUTES = {
    *("href", "title", "target", "rel", "class", "type", "start", "style", "tabindex", "data-copies"),
    "aria-label",
}
HOSTILE = [
    "![x](http://127.0.0.1/x.png)",
    "![x][y]\n\n[y]: http://127.0.0.1/x.png",
    "<img src=http://127.0.0.1/x.png>",
    "<script>alert(1)</script>",
    '<div style="background:url(http://127.0.0.1/x)">',
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&colon;alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](/gradio_api/info) [w](//example.com)",
    '[x](http://example.com "a\\" onclick=alert(1) b")',
    '```"><img src=x>\ncode\n```',
    "<http://example.com/?a=<b>>",
    "| <img src=x> |\n|--|\n| <script> |",
]


class Reader(HTMLParser):
    """The tags and attributes of some HTML, and its text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.links, self.text = set(), set(), [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href"]
        assert all(re.fullmatch("text-align:(left|right|center)", value) for name, value in attrs if name == "style")

    def handle_data(self, data):
        self.text += data


def check_harmless(html):
    found = Reader(html)
    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert all(is_safe_link(link) for link in found.links)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_would_load_or_run_does_not(text):
    check_harmless(markdown_html(text))


@given(
    st.text(st.sampled_from("<>![](){}\"'`*_~|\\&;:#-\n atpjs/.x1"), max_size=60)
    | st.lists(st.sampled_from(HOSTILE)).map("\n".join)
)
def test_no_text_becomes_other_html(text):
    check_harmless(markdown_html(text))


def test_links_open_elsewhere_and_tell_nothing():
    (link,) = re.findall("<a [^>]*>", markdown_html("[a & b](https://example.com/?a=1&b=2)"))
    assert 'rel="noopener noreferrer nofollow"' in link
    assert 'target="_blank"' in link
    assert 'title="https://example.com/?a=1&amp;b=2"' in link


def test_a_picture_is_a_link_that_says_so():
    shown = Reader(markdown_html("![a cat](https://example.com/cat.png)"))
    assert shown.text.strip() == "a cat (picture, not loaded)"
    assert shown.links == ["https://example.com/cat.png"]


@pytest.mark.parametrize(
    "text", ["*a* **b** `c`", "1. a\n2. b\n   - c", "> a\n\nb  \nc", "a | b\n--|--\nc | ~~d~~", "---\n\\*a\\*"]
)
def test_text_is_rendered_as_markdown_it_does(text):
    plain = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render(text)
    ours = markdown_html(text).replace('<div class="wide" tabindex="0">', "").replace("</table></div>", "</table>")
    assert ours == plain


@pytest.mark.parametrize("language", ["python", "no-such-language", "", "c++ title=x", "html"])
def test_code_keeps_every_character(language):
    code = "def f(a):\n\treturn '<b>' + \"é\"  # &amp;\n\n"
    found = re.search("<code>(.*?)</code>", markdown_html(f"```{language}\n{code}```"), re.DOTALL)
    assert Reader(found[1]).text == code


@pytest.mark.parametrize(("language", "code"), [("gherkin", "\n " * 4_000), ("c", "\n" * 8_000), ("typescript", "a." * 4_000)])
def test_a_block_that_its_language_takes_long_for_is_coloured_in_part_and_keeps_every_character(language, code):
    start = time.thread_time()
    found = re.search("<code>(.*?)</code>", markdown_html(f"```{language}\nx{code}x\n```"), re.DOTALL)
    assert Reader(found[1]).text == f"x{code}x\n"
    assert time.thread_time() - start < 10 * markdown.COLOUR_SECONDS


def test_words_of_a_known_language_are_coloured_and_a_huge_block_is_not():
    assert 'class="code-k"' in markdown_html("```python\nreturn\n```")
    assert 'class="code-k"' not in markdown_html(f"```python\n{'return ' * 5000}\n```")
