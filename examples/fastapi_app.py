"""Text generation in a FastAPI application: one model object, many concurrent requests, streamed.

    pip install onnx-textgen fastapi uvicorn
    uvicorn fastapi_app:app --app-dir examples
    curl -N "localhost:8000/story?beginning=Once+upon+a+time&seed=7"

The requests of all visitors share each step of the model. A visitor who disconnects ends the work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import onnx_textgen


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model once, before the first request."""
    app.state.model = onnx_textgen.load()
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/story")
async def write_story(request: Request, beginning: str, seed: int | None = None, max_new_tokens: int = 100) -> StreamingResponse:
    """Stream a story."""
    stream = request.app.state.model.astream(beginning, seed=seed, max_new_tokens=max_new_tokens)
    try:
        first = await anext(stream)  # an error in the request is raised here, before the status is sent
    except onnx_textgen.OnnxTextgenError as error:
        raise HTTPException(400, str(error)) from error

    async def texts() -> AsyncIterator[str]:
        yield first.text
        async for chunk in stream:
            yield chunk.text

    return StreamingResponse(texts(), media_type="text/plain; charset=utf-8")
