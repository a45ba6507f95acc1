"""`/live/events` and `/live/config`: what the page at `/` watches and changes."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from tiny_llm_lab.server.errors import ApiError
from tiny_llm_lab.server.live.page_stream import PageStream, batches
from tiny_llm_lab.server.live.recorder import StepRecorder
from tiny_llm_lab.server.live.view import MAX_BUDGET, LiveView

from . import page
from .served import Served

router = APIRouter(prefix="/live")


def add_live_page(app: FastAPI, recorder: StepRecorder, enable_controls: bool) -> None:
    """Serve the page at `/`. `recorder` is to be a listener of the engine."""
    app.state.live = LiveView(recorder, enable_controls)
    app.include_router(router)
    app.include_router(page.router)


def _view(request: Request) -> LiveView:
    return cast(LiveView, request.app.state.live)


View = Annotated[LiveView, Depends(_view)]


class ConfigChange(BaseModel):
    """What a page may change; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    enable_chunked_prefill: StrictBool | None = None
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_BUDGET)] | None = None


@router.get("/events", response_class=PageStream)
async def events(served: Served, view: View) -> PageStream:
    """The engine's steps as server-sent events, in batches, each a JSON list of events."""
    return PageStream(batches(view.recorder, view.hello(served), lambda: served.engine.is_ready))


@router.post("/config")
async def configure(change: ConfigChange, request: Request, served: Served, view: View) -> dict[str, object]:
    """Switch chunked prefill or set the token budget of a step, from the next step on."""
    if not view.has_controls:
        raise ApiError(403, "the page's controls are off: start with --enable-live-controls")
    config = await view.controls.apply(
        served.engine, change.enable_chunked_prefill, change.max_num_batched_tokens
    )
    return {
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
