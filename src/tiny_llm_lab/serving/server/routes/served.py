"""How a route gets at the served model."""

from typing import Annotated, cast

from fastapi import Depends, Request

from tiny_llm_lab.serving.server.served_model import ServedModel


def _served(request: Request) -> ServedModel:
    return cast(ServedModel, request.app.state.served)


Served = Annotated[ServedModel, Depends(_served)]
