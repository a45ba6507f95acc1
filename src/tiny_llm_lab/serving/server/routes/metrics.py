"""`/metrics`, and the line in the log that goes with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from tiny_llm_lab.serving.server.metrics.exposition import exposition
from tiny_llm_lab.serving.server.metrics.stats_log import stats_logged
from tiny_llm_lab.serving.server.served_model import Served


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Within the lifespan of the application, which has set the served model.
    async with stats_logged(app.state.served.metrics) if app.state.logs_stats else nullcontext():
        yield


router = APIRouter(lifespan=_lifespan)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(served: Served) -> Response:  # on a thread, as a page of text takes a millisecond
    """The metrics of the engine and the process, for Prometheus."""
    page = exposition(served.metrics, served.names[0])
    return Response(page, media_type=CONTENT_TYPE_PLAIN_0_0_4)
