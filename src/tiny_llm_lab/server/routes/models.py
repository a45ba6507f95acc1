"""`/health` and `/v1/models`."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from .served import Served

router = APIRouter()


@router.get("/health")
async def health(served: Served) -> JSONResponse:
    """200 while requests are taken, 503 before and after."""
    return JSONResponse({}, 200 if served.engine.is_ready else 503)


@router.get("/v1/models")
async def list_models(served: Served) -> dict[str, object]:
    """The names that a request may use."""
    return {"object": "list", "data": [_card(served, name) for name in served.names]}


def _card(served: Served, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": served.created_s,
        "owned_by": "tiny-llm",
        "root": served.names[0],
        "max_model_len": served.config.max_model_len,
    }
