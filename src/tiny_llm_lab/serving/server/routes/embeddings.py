"""`/v1/embeddings`."""

import asyncio
import uuid
from base64 import b64encode
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.serving.server.answering.answers import require_queue
from tiny_llm_lab.serving.server.answering.pooling import Vector, encoded, pooled, require_task
from tiny_llm_lab.serving.server.errors import ApiError, not_finite, to_json
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, Prompts, each_prompt
from tiny_llm_lab.serving.server.served_model import Served

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

    def require_supported(self, num_dimensions: int) -> None:
        """Raise ApiError for what we can't give, with a model of `num_dimensions`."""
        complaints = {
            "input": "is empty: give at least one text" if not self.input else "",
            "dimensions": f"must be at most {num_dimensions}, which the model has"
            if (self.dimensions or 1) > num_dimensions
            else "",
            "truncate_prompt_tokens": "is not supported: send shorter texts"
            if self.truncate_prompt_tokens is not None
            else "",
            "normalize": "must be true: all vectors have length 1" if self.normalize is False else "",
        }
        if len(each_prompt(self.input)) > MAX_INPUTS:
            complaints["input"] = f"may have at most {MAX_INPUTS} texts: send several requests"
        for param, complaint in complaints.items():
            if complaint:
                raise ApiError(400, f"{param} {complaint}", param=param)


@router.post("/v1/embeddings")
async def create_embeddings(body: EmbeddingRequest, request: Request, served: Served) -> Response:
    """The vector of each text, cut to `dimensions`, of length 1; base64 is of its float32, little endian."""
    served.require_name(body.model)
    require_task(served, "embed")
    body.require_supported(served.facts.model.hidden_size)
    inputs = each_prompt(body.input)
    require_queue(served, len(inputs))
    if body.add_special_tokens is False:
        inputs = [RenderedChat(each) if isinstance(each, str) else each for each in inputs]
    prompts = [each async for each in encoded(served, inputs, "input")]
    vectors, usage = await pooled(request, served, prompts, f"embd-{uuid.uuid4().hex}", body.priority)
    tail = to_json({"object": "list", "model": served.names[0], "usage": usage.as_dict()})
    # A million numbers take a second to write, so not on the event loop.
    data = await asyncio.to_thread(_written, vectors, body)
    return Response(b'{"data":[' + data + b"]," + tail[1:], media_type="application/json")


def _written(vectors: Sequence[Vector], body: EmbeddingRequest) -> bytes:
    entries = []
    for index, vector in enumerate(vectors):
        unit = unit_vector(vector[: body.dimensions])
        is_text = body.encoding_format == "base64"
        embedding = b64encode(unit.tobytes()).decode() if is_text else unit.tolist()
        entries.append(to_json({"object": "embedding", "index": index, "embedding": embedding}))
    return b",".join(entries)


def unit_vector(vector: Vector) -> np.ndarray:
    """`vector` divided by its length, float32. Raises ApiError for NaN and infinite numbers."""
    wide = np.array(vector, np.float64)
    length = float(np.linalg.norm(wide))
    if not np.isfinite(length):
        raise not_finite()
    return (wide / (length or 1)).astype("<f4")
