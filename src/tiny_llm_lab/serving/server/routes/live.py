"""`/live/events` and `/live/config`: what the page at `/` watches and changes."""

from typing import Annotated, Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.live.page_stream import PageStream, batches
from tiny_llm_lab.serving.server.served_model import Served, ServedModel

LONG_PROMPT_TOKENS: Final = 3000
MIN_BUDGET: Final = 64
MAX_BUDGET: Final = 65_536

router = APIRouter(prefix="/live")


class ConfigChange(BaseModel):
    """What a page may change; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    enable_chunked_prefill: StrictBool | None = None
    max_num_batched_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_BUDGET)] | None = None


@router.get("/events", response_class=PageStream, status_code=200)
async def events(served: Served) -> PageStream:
    """The engine's steps as server-sent events, each a JSON list of what happened in 0.1 s."""
    return PageStream(batches(served.live.recorder, _hello(served), lambda: served.engine.is_ready))


@router.post("/config")
async def configure(change: ConfigChange, served: Served) -> dict[str, object]:
    """Switch chunked prefill or set the token budget of a step, from the next step on."""
    if not served.live.has_controls:
        raise ApiError(403, "the page's controls are off: start with --enable-live-controls")
    config = await served.live.controls.apply(
        served.engine, change.enable_chunked_prefill, change.max_num_batched_tokens
    )
    return {
        "enable_chunked_prefill": config.enable_chunked_prefill,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }


def _hello(served: ServedModel) -> dict[str, Any]:
    """What a page has to know before the first step."""
    longest = served.config.max_model_len
    return {
        "model": served.names[0],
        "has_controls": served.live.has_controls,
        "max_model_len": longest,
        "min_budget": max(MIN_BUDGET, served.config.max_num_seqs),
        "long_prompt_tokens": min(LONG_PROMPT_TOKENS, longest * 3 // 4),
        "vocab_size": served.model.vocab_size,
        "num_blocks": served.num_blocks,
        "block_size": served.block_size,
    }
