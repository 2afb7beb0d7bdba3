"""How long a model thinks, by the words of the wire formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_textgen.derivation.reasoning_derivation import THINKING_SWITCHES

BUDGETS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": None,
    "xhigh": None,
    "max": None,
}
"""Most tokens of thinking for each effort."""


def thinking_inputs(
    *, effort: str | None = None, enabled: bool | None = None, budget: int | None = None, variables: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of `ChatEncoder.turn` about thinking, for a model that thinks.

    `effort`: a key of `BUDGETS`. `enabled`: whether to think at all; None: as the effort says, or as the template does by default.
    `budget`: most tokens, before that of the effort. `variables`: others of the template, which have precedence.

    >>> thinking_inputs(effort="low")
    {'chat_template_kwargs': {'reasoning_effort': 'low', 'enable_thinking': True, 'thinking': True}, 'thinking_budget': 1024}
    >>> thinking_inputs(enabled=False)
    {'chat_template_kwargs': {'enable_thinking': False, 'thinking': False}, 'thinking_budget': 0}
    """
    own = dict[str, Any]()
    if effort is not None:
        own["reasoning_effort"] = effort
        enabled = effort != "none" if enabled is None else enabled
        budget = BUDGETS[effort] if budget is None else budget
    if enabled is not None:
        own |= dict.fromkeys(THINKING_SWITCHES, enabled)
        budget = budget if enabled else 0
    return {"chat_template_kwargs": own | dict(variables or {}), "thinking_budget": budget}
