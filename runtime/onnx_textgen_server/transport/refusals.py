"""Turns errors into responses in the form that the client reads, and counts them."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from onnx_textgen import OnnxTextgenError
from onnx_textgen.errors import LOG

from ..serving.measurements import Metrics
from ..serving.problems import CLOSED_BY_CLIENT, Problem, problem_of
from .error_messages import message_for_body, message_for_route
from .wire_formats import wire_format_of


def refuse(metrics: Metrics, scope: Scope, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Count a problem, and return its response in the form that the client reads."""
    if problem.status != CLOSED_BY_CLIENT:
        metrics.refused.labels(str(problem.status)).inc()
    return JSONResponse(wire_format_of(scope).problem(problem), problem.status, headers)


def add_problems(app: FastAPI, metrics: Metrics) -> None:
    """Add the handlers that turn errors into responses."""

    @app.exception_handler(OnnxTextgenError)
    async def our_error(http: Request, error: OnnxTextgenError) -> Response:
        problem = problem_of(error)
        return refuse(metrics, http.scope, problem, {"Retry-After": "1"} if problem.status == 429 else None)

    @app.exception_handler(RequestValidationError)
    async def malformed_body(http: Request, error: RequestValidationError) -> Response:
        field = http.scope["route"].body_field
        message = message_for_body(error.errors(), field and field.field_info.annotation)
        return refuse(metrics, http.scope, Problem(400, message))

    @app.exception_handler(StarletteHTTPException)
    async def http_error(http: Request, error: StarletteHTTPException) -> Response:
        if error.detail in ("Not Found", "Method Not Allowed"):  # the framework's words for an unknown path or method
            message = message_for_route(error.status_code, http.url.path, (error.headers or {}).get("Allow"))
            return refuse(metrics, http.scope, Problem(error.status_code, message), error.headers)
        code = "model_not_found" if error.status_code == 404 and "model" in error.detail else None
        return refuse(metrics, http.scope, Problem(error.status_code, error.detail, code), error.headers)

    @app.exception_handler(Exception)
    async def unexpected_error(http: Request, error: Exception) -> Response:
        LOG.error("a request failed", exc_info=error)
        return refuse(metrics, http.scope, problem_of(error))
