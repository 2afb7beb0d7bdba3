"""Markdown of untrusted text as HTML: no raw HTML, nothing that a browser would load, only links to web pages and addresses.

gr.Chatbot is not used for this: even with `sanitize_html` it loads pictures, videos and backgrounds from any address in a text.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any
from urllib.parse import urlsplit

import pygments
from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Text
from pygments.util import ClassNotFound

from .formulas import add_formulas

SCHEMES = ("http", "https", "mailto")
"""A link with another scheme is shown as text."""
LONGEST_HIGHLIGHTED = 20_000
"""Characters of a code block whose words are coloured; a longer one takes the server too long."""
LONGEST_LEXED = 2_000
"""Characters that a lexer gets at once: for one word some take the square of that, and the model names the lexer."""
COLOUR_SECONDS = 0.2
"""Time of this thread after which the rest of a block has no colours."""
FORMATTER = HtmlFormatter(nowrap=True, classprefix="code-")


@functools.lru_cache(maxsize=4096)
def markdown_html(text: str) -> str:
    """The HTML of a text in CommonMark with tables, strikethrough and formulas.

    >>> markdown_html("*Hello* <b>you</b>").strip()
    '<p><em>Hello</em> &lt;b&gt;you&lt;/b&gt;</p>'
    """
    return str(PARSER.render(text))


def code_html(code: str, language: str) -> str:
    """A code block with its language and a button that copies it."""
    name = language.split(maxsplit=1)[0][:30] if language.strip() else "text"
    return (
        f'<div class="code"><div class="code-head"><span>{escape(name)}</span>'
        f'<button type="button" class="copy glyph glyph-copy" aria-label="Copy code"></button></div>'
        f'<pre tabindex="0"><code>{coloured(code, name)}</code></pre></div>'
    )


def coloured(code: str, language: str) -> str:
    """The HTML of code, its words in classes of Pygments if it knows the language."""
    if len(code) > LONGEST_HIGHLIGHTED:
        return escape(code, quote=False)
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return escape(code, quote=False)
    return str(pygments.format(words(code, lexer), FORMATTER))


def words(code: str, lexer: Lexer) -> Iterator[tuple[Any, str]]:
    """The kind and the text of each word; once `COLOUR_SECONDS` are over, the rest as one plain text."""
    stop, place = time.thread_time() + COLOUR_SECONDS, 0
    while place < len(code) and time.thread_time() < stop:
        end = place + LONGEST_LEXED
        end = code.rfind("\n", place, end) + 1 or end
        yield from lexer.get_tokens(code[place:end])
        place = end
    yield Text, code[place:]


def is_safe_link(address: str) -> bool:
    """Whether a link may lead there.

    >>> is_safe_link("https://example.com"), is_safe_link("javascript:alert(1)"), is_safe_link("/gradio_api/info")
    (True, False, False)
    """
    try:
        return urlsplit(address).scheme.lower() in SCHEMES
    except ValueError:  # brackets that are no IPv6 address, for example
        return False


class Renderer:
    """The rules in which our HTML differs from markdown-it's; each gets all tokens and the index of one."""

    def fence(self, tokens: Sequence[Token], index: int, *_: Any) -> str:  # noqa: ANN401 - options that are not used
        """A code block."""
        return code_html(tokens[index].content, tokens[index].info)

    def image(self, tokens: Sequence[Token], index: int, *_: Any) -> str:  # noqa: ANN401 - likewise
        """A picture: a link to it, because loading it would tell its server what was said."""
        address = str(tokens[index].attrs.get("src", ""))
        name = escape(tokens[index].content or "picture")
        return f'<a {link_attributes(address)}>{name}</a> <small class="aside">(picture, not loaded)</small>'

    def link_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:  # noqa: ANN401 - likewise
        """The start of a link, in a new tab that learns nothing of this page."""
        return f"<a {link_attributes(str(tokens[index].attrs.get('href', '')))}>"

    def table_open(self, *_: Any) -> str:  # noqa: ANN401 - likewise
        """The start of a table, which scrolls if it is wide."""
        return '<div class="wide" tabindex="0"><table>\n'

    def table_close(self, *_: Any) -> str:  # noqa: ANN401 - likewise
        """The end of a table."""
        return "</table></div>\n"

    def heading_open(self, tokens: Sequence[Token], index: int, *_: Any) -> str:  # noqa: ANN401 - likewise
        """The start of a heading: of the text, and no heading of the page."""
        return f'<p class="heading level-{tokens[index].tag[1]}">'

    def heading_close(self, *_: Any) -> str:  # noqa: ANN401 - likewise
        """The end of a heading."""
        return "</p>\n"


def link_attributes(address: str) -> str:
    """The attributes of a link; its title shows where it leads."""
    shown = escape(address)
    return f'href="{shown}" title="{shown}" target="_blank" rel="noopener noreferrer nofollow"'


def make_parser() -> MarkdownIt:
    """A parser with our rules."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    add_formulas(parser)
    parser.validateLink = is_safe_link  # type: ignore[assignment,method-assign]  # how markdown-it is told
    rules = Renderer()
    parser.renderer.rules |= {  # type: ignore[attr-defined]
        "fence": rules.fence,
        "code_block": rules.fence,
        "image": rules.image,
        "link_open": rules.link_open,
        "table_open": rules.table_open,
        "table_close": rules.table_close,
        "heading_open": rules.heading_open,
        "heading_close": rules.heading_close,
    }
    return parser


PARSER = make_parser()
