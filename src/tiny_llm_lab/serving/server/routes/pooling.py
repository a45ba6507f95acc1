"""`/v1/embeddings` and `/v1/rerank`: requests that draw no token."""

import asyncio
import math
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.serving.server import api
from tiny_llm_lab.serving.server.answering.answers import Answers, encode_prompt, require_queue
from tiny_llm_lab.serving.server.answering.event_stream import Usage, read_all
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, Prompts, SamplingFields, each_prompt
from tiny_llm_lab.types import EngineOutput, SamplingParams, Task

MAX_TOKENS: Final = 300_000  # of one request, as in OpenAI's API
Vector = tuple[float, ...]


def require_task(served: api.ServedModel, task: Task) -> None:
    """Raise ApiError unless the model is served for `task`."""
    if served.facts.model.task != task:
        is_for = f"{served.names[0]} is served to {served.facts.model.task}"
        raise api.ApiError(400, f"{is_for}: start the server with --task {task}, and with a model for it")


async def encoded(
    served: api.ServedModel, inputs: Iterable[str | Sequence[int]], param: str
) -> AsyncIterator[Sequence[int]]:
    """The tokens of each input. Raises ApiError for one that is empty or too long, and for too many."""
    num_tokens = 0
    for each in inputs:
        token_ids = await encode_prompt(served, each, 0, param)
        num_tokens += len(token_ids)
        if num_tokens > MAX_TOKENS:
            raise api.refused(param, f"has more than {MAX_TOKENS} tokens in all: send several requests")
        yield token_ids


async def pooled(
    request: Request,
    served: api.ServedModel,
    prompts: Sequence[Sequence[int]],
    request_id: str,
    body: "EmbeddingRequest | RerankRequest",
) -> tuple[list[Vector], Usage]:
    """The vector of each prompt, and what it took. Raises ApiError, also if the client has left."""
    usage, vectors = Usage(sum(map(len, prompts))), dict[int, Vector]()

    def keep(idx: int, output: EngineOutput) -> None:
        usage.count(idx, output)
        if output.completion is not None:
            vectors[idx] = output.completion.vector

    sampling = SamplingParams(pooling=True)
    asked = SamplingFields.model_validate({"priority": body.priority, "model": body.model})
    answers = await Answers.start(served, prompts, sampling, request_id, asked, request.headers)
    await read_all(request, answers, keep)
    if len(vectors) < len(prompts):
        raise api.ApiError(499, "the client left")
    return [vectors[idx] for idx in range(len(prompts))], usage


router = APIRouter()
MAX_INPUTS: Final = 2048  # as in OpenAI's API


class EmbeddingRequest(BaseModel, strict=True, extra="ignore"):
    """One text or several. A field that is null counts as not sent; unknown fields are ignored."""

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None

    # vLLM's
    priority: int | None = Field(None, ge=-MAX_COUNT, lt=MAX_COUNT)
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None

    def require_supported(self, most: int) -> None:
        """Raise ApiError for what we can't give, with a model of `most` dimensions."""
        is_many, is_cut = len(each_prompt(self.input)) > MAX_INPUTS, self.truncate_prompt_tokens is not None
        complaints = (
            ("input", not self.input, "is empty: give at least one text"),
            ("input", is_many, f"may have at most {MAX_INPUTS} texts: send several requests"),
            ("dimensions", (self.dimensions or 1) > most, f"must be at most {most}, which the model has"),
            ("truncate_prompt_tokens", is_cut, "is not supported: send shorter texts"),
            ("normalize", self.normalize is False, "must be true: all vectors have length 1"),
        )
        for param, is_wrong, complaint in complaints:
            if is_wrong:
                raise api.refused(param, complaint)


@router.post("/v1/embeddings")
async def create_embeddings(body: EmbeddingRequest, request: Request, served: api.Served) -> Response:
    """The vector of each text, cut to `dimensions`, of length 1; base64 is of its float32, little endian."""
    served.require_name(body.model)
    require_task(served, "embed")
    body.require_supported(served.facts.model.hidden_size)
    inputs = each_prompt(body.input)
    require_queue(served, 1)
    if body.add_special_tokens is False:
        inputs = [RenderedChat(each) if isinstance(each, str) else each for each in inputs]
    prompts = [each async for each in encoded(served, inputs, "input")]
    vectors, usage = await pooled(request, served, prompts, f"embd-{uuid.uuid4().hex}", body)
    tail = api.to_json({"object": "list", "model": served.names[0], "usage": usage.as_dict()})
    # A million numbers take a second to write, so not on the event loop.
    data = await asyncio.to_thread(_written, vectors, body)
    return Response(b'{"data":[' + data + b"]," + tail[1:], media_type="application/json")


def _written(vectors: Sequence[Vector], body: EmbeddingRequest) -> bytes:
    entries = []
    for index, vector in enumerate(vectors):
        unit = unit_vector(vector[: body.dimensions])
        is_text = body.encoding_format == "base64"
        embedding = b64encode(unit.tobytes()).decode() if is_text else unit.tolist()
        entries.append(api.to_json({"object": "embedding", "index": index, "embedding": embedding}))
    return b",".join(entries)


def unit_vector(vector: Vector) -> np.ndarray:
    """`vector` divided by its length, float32. Raises ApiError for NaN and infinite numbers."""
    wide = np.array(vector, np.float64)
    length = float(np.linalg.norm(wide))
    if not np.isfinite(length):
        raise api.not_finite()
    return (wide / (length or 1)).astype("<f4")


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
                raise api.refused(param, "is not supported: send shorter documents")


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(body: RerankRequest, request: Request, served: api.Served) -> Response:
    """The documents, the most relevant first; relevance is the probability of "yes" against "no"."""
    served.require_name(body.model)
    require_task(served, "score")
    body.require_supported()
    require_queue(served, 1)
    asked = f"<Instruct>: {body.instruction or INSTRUCTION}\n<Query>: {body.query}\n<Document>: "
    framed = (served.tokenizer.framed(_BEFORE, asked + each, _AFTER) for each in body.documents)
    prompts = [each async for each in encoded(served, framed, "documents")]
    request_id = f"rerank-{uuid.uuid4().hex}"
    vectors, usage = await pooled(request, served, prompts, request_id, body)
    scores = [relevance(no, yes) for no, yes in vectors]
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    most = body.top_n if (body.top_n or 0) > 0 else None
    results = [_result(body, index, scores[index]) for index in ranked[:most]]
    head = {"id": request_id, "model": served.names[0], "usage": usage.as_dict()}
    return api.json_response({**head, "results": results})


def _result(body: RerankRequest, index: int, score: float) -> dict[str, Any]:
    has_text = body.return_documents is not False
    document = {"document": {"text": body.documents[index]}} if has_text else {}
    return {"index": index, **document, "relevance_score": score}


def relevance(no: float, yes: float) -> float:
    """The probability of "yes", from the logits of both."""
    lead = yes - no
    return math.exp(min(lead, 0)) / (1 + math.exp(-abs(lead)))
