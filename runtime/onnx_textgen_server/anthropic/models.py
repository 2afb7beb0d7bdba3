"""`GET /v1/models` as Anthropic's clients read it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_textgen.errors import OptionError
from onnx_textgen.options.checks import shown

USUAL_LIMIT, MOST = 20, 1000
"""Models of one page, by default and at most."""


def model_info(about: Mapping[str, Any]) -> dict[str, Any]:
    """A model; `about`: its entry in `/v1/models`. It is as old as the server's process."""
    return {
        "type": "model",
        "id": about["id"],
        "display_name": about["id"],
        "created_at": datetime.datetime.fromtimestamp(about["created"], datetime.UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": about["max_model_len"],
        "max_tokens": about["max_model_len"],
    }


def page_of_models(every: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the models; `query`: `limit`, and `after_id` or `before_id`. Raises `OptionError`."""
    names, limit = [each["id"] for each in every], query.get("limit", str(USUAL_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MOST):
        raise OptionError(f"limit should be a whole number from 1 to {MOST:,}, found {shown(limit)}")
    for key in ("after_id", "before_id"):
        if key in query and query[key] not in names:
            raise OptionError(f"{key} should be one of the models ({', '.join(names)}), found {shown(query[key])}")
    first = names.index(query["after_id"]) + 1 if "after_id" in query else 0
    last = names.index(query["before_id"]) if "before_id" in query else len(names)
    found, count = every[first:last], int(limit)
    part = [model_info(each) for each in (found[-count:] if "before_id" in query else found[:count])]
    ends = {"first_id": part[0]["id"], "last_id": part[-1]["id"]} if part else {"first_id": None, "last_id": None}
    return {"data": part, "has_more": len(found) > len(part), **ends}
