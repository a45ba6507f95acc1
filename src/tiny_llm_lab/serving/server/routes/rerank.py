"""`/v1/rerank`: documents in the order of their relevance to a query, as Qwen3-Reranker judges it."""

import math
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field

from tiny_llm_lab.serving.server.answering.answers import require_queue
from tiny_llm_lab.serving.server.answering.pooling import encoded, pooled, require_task
from tiny_llm_lab.serving.server.errors import ApiError, json_response
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT
from tiny_llm_lab.serving.server.served_model import Served

router = APIRouter()
MAX_DOCUMENTS: Final = 1000  # as in Cohere's API
INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
# The prompt that the model was trained with, as its model card has it.
_BEFORE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def _text(given: object) -> object:
    """The text of an object as Cohere's and Jina's clients write it; a title beside it is not read."""
    is_text = isinstance(given, Mapping) and "text" in given and not given.get("image")
    return cast(Mapping[str, object], given)["text"] if is_text else given


Text = Annotated[str, BeforeValidator(_text)]


class RerankRequest(BaseModel, strict=True, extra="ignore"):
    """A query and documents. A field that is null counts as not sent; unknown fields are ignored."""

    query: Text
    documents: list[Text] = Field(min_length=1, max_length=MAX_DOCUMENTS)
    model: str | None = None
    top_n: int | None = None  # 0 and below: all, as in vLLM
    return_documents: bool | None = None
    instruction: str | None = None  # in place of INSTRUCTION
    priority: int | None = Field(None, ge=-MAX_COUNT, lt=MAX_COUNT)
    truncate_prompt_tokens: int | None = None  # vLLM's
    max_tokens_per_doc: int | None = None  # Cohere's
    rank_fields: list[Literal["text"]] | None = None  # Cohere's

    def require_supported(self) -> None:
        """Raise ApiError for what would cut documents."""
        for param in ("truncate_prompt_tokens", "max_tokens_per_doc"):
            if getattr(self, param) is not None:
                raise ApiError(400, f"{param} is not supported: send shorter documents", param=param)


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(body: RerankRequest, request: Request, served: Served) -> Response:
    """The documents, the most relevant first; relevance is the probability of "yes" against "no"."""
    served.require_name(body.model)
    require_task(served, "score")
    body.require_supported()
    require_queue(served, len(body.documents))
    asked = f"<Instruct>: {body.instruction or INSTRUCTION}\n<Query>: {body.query}\n<Document>: "
    framed = (served.tokenizer.framed(_BEFORE, asked + each, _AFTER) for each in body.documents)
    prompts = [each async for each in encoded(served, framed, "documents")]
    request_id = f"rerank-{uuid.uuid4().hex}"
    vectors, usage = await pooled(request, served, prompts, request_id, body.priority)
    scores = [relevance(no, yes) for no, yes in vectors]
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    most = body.top_n if (body.top_n or 0) > 0 else None
    results = [_result(body, index, scores[index]) for index in ranked[:most]]
    head = {"id": request_id, "model": served.names[0], "usage": usage.as_dict()}
    return json_response({**head, "results": results})


def _result(body: RerankRequest, index: int, score: float) -> dict[str, Any]:
    has_text = body.return_documents is not False
    document = {"document": {"text": body.documents[index]}} if has_text else {}
    return {"index": index, **document, "relevance_score": score}


def relevance(no: float, yes: float) -> float:
    """The probability of "yes", from the logits of both."""
    lead = yes - no
    return math.exp(min(lead, 0)) / (1 + math.exp(-abs(lead)))
