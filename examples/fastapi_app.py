"""Text generation inside an application of your own, with FastAPI: one model object, many requests at once, streamed.

    pip install onnx-textgen fastapi uvicorn
    uvicorn fastapi_app:app --app-dir examples
    curl -N "localhost:8000/story?beginning=Once+upon+a+time&seed=7"

The requests of all visitors go on together, one step of the model for all. A visitor who goes away ends the work.
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
    """A story as it is written."""
    stream = request.app.state.model.astream(beginning, seed=seed, max_new_tokens=max_new_tokens)
    try:
        first = await anext(stream)  # what is wrong with the request shows here, while there is still a status to give
    except onnx_textgen.OnnxTextgenError as error:
        raise HTTPException(400, str(error)) from error

    async def texts() -> AsyncIterator[str]:
        yield first.text
        async for chunk in stream:
            yield chunk.text

    return StreamingResponse(texts(), media_type="text/plain; charset=utf-8")
