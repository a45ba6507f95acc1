"""`/tokenize` and `/detokenize`."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.serving.server.answering.answers import require_prompt
from tiny_llm_lab.serving.server.api import ApiError, Served, ServedModel, blamed, json_response
from tiny_llm_lab.serving.server.chat.conversation import Conversation, prepare
from tiny_llm_lab.serving.server.schemas.chat import ChatMessage, ChatRequest, turns_of
from tiny_llm_lab.serving.server.schemas.sampling import RequestFields, ThinkingFields
from tiny_llm_lab.serving.server.schemas.tools import MAX_TOOLS, Tool, chosen_functions


class TokenizeRequest(ThinkingFields):
    """A text, or a conversation as in `/v1/chat/completions`, whose answer nothing here limits."""

    others = ChatRequest.model_fields.keys()

    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class DetokenizeRequest(RequestFields):
    """Token ids."""

    tokens: list[int]


router = APIRouter()


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, served: Served) -> Response:
    """The tokens of a text or of a conversation."""
    served.require_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "send prompt or messages", param="prompt")
    tokens = await _tokens(body, served)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": served.max_num_tokens, "tokens": tokens}
    decode = served.tokenizer.decode
    answer["token_strs"] = [decode([each]) for each in tokens] if body.return_token_strs else None
    return json_response(answer)


async def _tokens(body: TokenizeRequest, served: ServedModel) -> Sequence[int]:
    if body.messages is None:
        text = body.prompt or ""
        with blamed("prompt"):
            return await served.encode(text if body.add_special_tokens else RenderedChat(text))
    chosen = chosen_functions([each.function for each in body.tools or ()], body.tool_choice)
    contents, has_form = served.contents(), body.form() is not None  # the prompt may open thoughts before it
    given = {"add_generation_prompt": body.add_generation_prompt, "has_form": has_form}
    turns, goes_on = turns_of(body.messages, contents), body.continue_final_message
    chat = Conversation.asked(body, turns, chosen, contents, goes_on, **given)
    return (await prepare(served, chat, is_bounded=False)).token_ids


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, served: Served) -> Response:
    """The text of tokens."""
    served.require_name(body.model)
    if body.tokens:
        require_prompt(served, body.tokens, "tokens")
    return json_response({"prompt": await asyncio.to_thread(served.tokenizer.decode, body.tokens)})
