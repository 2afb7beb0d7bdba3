"""The page at `/`: which models and routes the server has, and how to call it. It loads nothing, and runs no script."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@functools.cache
def template() -> jinja2.Template:
    """The page's template, which escapes all values."""
    text = Path(__file__).with_name("home.html").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True, trim_blocks=True).from_string(text)


def home_page(url: str, models: Sequence[Mapping[str, Any]] | None, routes: Iterable[Mapping[str, str]]) -> HTMLResponse:
    """The page.

    `models` are entries of `/v1/models`; None if requests need a key, as the page needs none. `url` is the server's address.
    """
    name = next((each["id"] for each in models or () if not each["status"].get("failed")), "MODEL")
    body = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 40}, ensure_ascii=False).replace("'", r"'\''")
    values = {"url": url, "models": models or [], "needs_key": models is None, "routes": routes, "body": body}
    return HTMLResponse(template().render(values, python_name=json.dumps(name, ensure_ascii=False)), headers=HEADERS)


def routes_of(app: FastAPI | APIRouter) -> list[dict[str, str]]:
    """Method, path and purpose of each route; the purpose is the first line of its function's docstring."""
    return [
        {"method": method, "path": route.path.replace("{name:path}", "NAME"), "purpose": route.description.split("\n")[0]}
        for route in app.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in sorted(route.methods or ())
    ]
