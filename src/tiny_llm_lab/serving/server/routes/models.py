"""The served models and the server's health: `/v1/models`, `/health`, `/ping`, `/version`."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter
from fastapi.responses import Response

from tiny_llm_lab.serving.server.api import Served, json_response, model_card

router = APIRouter()


@router.get("/health")
@router.get("/ping")
async def health(served: Served) -> Response:
    """200 while the server takes requests, with a note on any lack of memory; 503 afterwards."""
    served.engine.require_ready()
    note = served.engine.memory_note
    return json_response({"status": "ok"} | ({"memory": note} if note else {}))


@router.get("/version")
async def show_version() -> Response:
    """The version of tiny-llm."""
    try:
        return json_response({"version": version("tiny-llm")})
    except PackageNotFoundError:  # run from source
        return json_response({"version": "unknown"})


@router.get("/v1/models")
async def list_models(served: Served) -> Response:
    """The names that a request may use."""
    return json_response({"object": "list", "data": [_card(served, name) for name in served.names]})


@router.get("/v1/models/{name:path}")
async def show_model(name: str, served: Served) -> Response:
    """One of these names."""
    served.require_name(name)
    return json_response(_card(served, name))


def _card(served: Served, name: str) -> Mapping[str, object]:
    return model_card(name, served.names[0], served.created_s, max_model_len=served.max_num_tokens)
