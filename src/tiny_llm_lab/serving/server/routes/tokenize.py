"""`/tokenize` and `/detokenize`."""

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.serving.server.answering.prompt_checks import require_prompt
from tiny_llm_lab.serving.server.errors import json_response
from tiny_llm_lab.serving.server.served_model import Served


class TokenizeRequest(BaseModel, strict=True):
    """A text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(BaseModel, strict=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


router = APIRouter()


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, served: Served) -> Response:
    """The tokens of a text."""
    served.require_name(body.model)
    tokens = await served.encode(body.prompt if body.add_special_tokens else RenderedChat(body.prompt))
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": served.max_num_tokens, "tokens": tokens}
    decode = served.tokenizer.decode
    answer["token_strs"] = [decode([each]) for each in tokens] if body.return_token_strs else None
    return json_response(answer)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, served: Served) -> Response:
    """The text of tokens."""
    served.require_name(body.model)
    if body.tokens:
        require_prompt(served, body.tokens, "tokens")
    return json_response({"prompt": await asyncio.to_thread(served.tokenizer.decode, body.tokens)})
