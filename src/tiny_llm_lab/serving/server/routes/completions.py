"""`/v1/completions` and `/v1/chat/completions`."""

import time
import uuid
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json import dumps
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.answering.answers import Answers, encode_prompt, require_queue
from tiny_llm_lab.serving.server.answering.event_stream import STREAMED, Choices, Usage, respond
from tiny_llm_lab.serving.server.api import Served, ServedModel, WrittenList, blamed, refused, to_json
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.chat.conversation import Conversation, prepare
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest, turns_of
from tiny_llm_lab.serving.server.schemas.sampling import MAX_COUNT, CompletionFields, Prompts, each_prompt
from tiny_llm_lab.serving.server.schemas.tools import chosen_functions
from tiny_llm_lab.types import MAX_LOGPROBS, EngineOutput, SamplingParams, TokenLogprobs

router = APIRouter()
DEFAULT_MAX_TOKENS: Final = 16


class CompletionRequest(CompletionFields):
    """One prompt or several, continued as they are, without a chat template."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, lt=MAX_COUNT)  # null: DEFAULT_MAX_TOKENS
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt: a text, or token ids."""
        return each_prompt(self.prompt)

    def require_supported(self) -> None:
        """Raise ApiError for what the engine cannot do."""
        if not self.prompt:
            raise refused("prompt", "is empty: give at least one token")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refused("best_of", "is not supported: ask for n answers and choose")


@router.post("/v1/completions", responses=STREAMED)
async def create_completion(body: CompletionRequest, request: Request, served: Served) -> Response:
    """Continue one prompt or several; as one JSON document, or as events while tokens come."""
    served.require_name(body.model)
    body.require_supported()
    n = body.n or 1
    require_queue(served, len(body.prompts) * n)
    prompts = await _encoded(served, body)
    request_id = f"cmpl-{uuid.uuid4().hex}"
    token_ids = [each for _, each in prompts]
    sampling = _sampling(served, body)
    with blamed(body.form_field if sampling.structured_outputs else None):
        answers = await Answers.start(served, token_ids, sampling, request_id, body, request.headers)
    choices = [_Choice(served, body, *prompt) for prompt in prompts for _ in range(n)]
    usage = Usage(sum(map(len, token_ids)), n, has_answers=body.max_tokens != 0)
    head = {"id": request_id, "created": int(time.time()), "model": served.names[0]}
    kind = "text_completion"
    reply = Choices(head, choices, usage, kind, kind, body.include_usage, body.has_running_usage)
    return await respond(request, answers, reply, body.is_stream)


async def _encoded(served: ServedModel, body: CompletionRequest) -> list[tuple[str, Sequence[int]]]:
    """Text and token ids of every prompt."""
    prompts = []
    for prompt in body.prompts:
        token_ids = await encode_prompt(served, prompt, _max_tokens(body))
        text = prompt if isinstance(prompt, str) else served.tokenizer.decode(prompt) if body.echo else ""
        prompts.append((text, token_ids))
    return prompts


def _max_tokens(body: CompletionRequest) -> int:
    return DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _sampling(served: ServedModel, body: CompletionRequest) -> SamplingParams:
    given: dict[str, Any] = {"max_tokens": max(1, _max_tokens(body)), "logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        given["prompt_logprobs"] = body.logprobs
    return body.sampling_params(served.presets, **given)


@dataclass
class _Choice:
    """What one choice has so far."""

    served: ServedModel
    body: CompletionRequest
    prompt: str
    prompt_token_ids: Sequence[int]

    def __post_init__(self) -> None:
        self._parts: list[str] = []
        self._finish_reason: str | None = None
        self._is_first = True
        has_logprobs = self.body.logprobs is not None
        self._logprobs = LegacyLogprobs(self.served.tokenizer) if has_logprobs else None

    def keep(self, output: EngineOutput) -> tuple[str, str | None]:
        """Keep the text and the finish reason of `output`, and return them."""
        if self.body.max_tokens == 0:
            output = replace(output, token_ids=(), text="", logprobs=())  # drop the drawn token
        text = output.text
        if self._is_first and self.body.echo:
            text = self.prompt + text
            if self._logprobs is not None:
                self._logprobs.add_prompt(self.prompt_token_ids, output)
        self._is_first = False
        if self._logprobs is not None:
            self._logprobs.add(output.logprobs)
        if output.completion is not None:
            self._finish_reason = "length" if self.body.max_tokens == 0 else output.completion.finish_reason
        self._parts.append(text)
        return text, self._finish_reason

    def whole(self, idx: int) -> dict[str, Any]:
        """The choice in an answer that is not streamed."""
        return {
            "index": idx,
            "text": "".join(self._parts),
            "logprobs": None if self._logprobs is None else self._logprobs.taken(),
            "finish_reason": self._finish_reason,
        }

    def chunk(self, idx: int, output: EngineOutput) -> bytes:
        """The choice in an event."""
        text, finish_reason = self.keep(output)
        self._parts.clear()
        logprobs = "null" if self._logprobs is None else to_json(self._logprobs.taken()).decode()
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        fields = f'"text": {dumps(text)}, "logprobs": {logprobs}, "finish_reason": {reason}'
        return f'{{"index": {idx}, {fields}}}'.encode()


_LOGPROBS: Final = ("tokens", "token_logprobs", "top_logprobs", "text_offset")  # a list of each


class LegacyLogprobs:
    """Collects the tokens of one choice."""

    def __init__(self, tokenizer: CheckpointTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}  # of tokens: the likeliest ones repeat
        self._offset = 0  # number of characters in all tokens so far
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._columns: dict[str, Any] = {}
        self.taken()

    def add_prompt(self, token_ids: Sequence[int], output: EngineOutput) -> None:
        """Add the prompt's tokens; nothing comes before the first, so it has no probability."""
        self._add(token_ids[0], None)
        self.add([score for score in output.prompt_logprobs if score is not None])

    def add(self, scores: Sequence[TokenLogprobs]) -> None:
        """Add tokens of the answer."""
        for score in scores:
            self._add(score.token_id, score)

    def taken(self) -> dict[str, Any]:
        """Everything added since the last call, for `to_json`."""
        taken = self._columns
        self._columns = {name: [] for name in _LOGPROBS} | {"top_logprobs": WrittenList()}
        return taken

    def _add(self, token_id: int, score: TokenLogprobs | None) -> None:
        text = self._text(token_id)
        scores = (None, None) if score is None else (score.logprob, self._named(score))
        for name, value in zip(_LOGPROBS, (text, *scores, self._offset), strict=True):
            self._columns[name].append(value)
        # Several tokens may be one character.
        data = self._tokenizer.token_bytes(token_id) if "\ufffd" in text else text.encode()
        self._offset += len(self._decoder.decode(data))

    def _text(self, token_id: int) -> str:
        if token_id not in self._texts:
            self._texts[token_id] = self._tokenizer.decode([token_id])
        return self._texts[token_id]

    def _named(self, score: TokenLogprobs) -> dict[str, float]:
        # The token itself is there too, however unlikely it is.
        pairs = (*score.top, (score.token_id, score.logprob))
        return {self._name(token_id, score.token_id): logprob for token_id, logprob in pairs}

    def _name(self, token_id: int, chosen: int) -> str:
        """A token's text. Parts of characters have the same, so others than `chosen` are named by bytes."""
        text = self._text(token_id)
        if token_id == chosen or "\ufffd" not in text:
            return text
        return "bytes:" + "".join(f"\\x{each:02x}" for each in self._tokenizer.token_bytes(token_id))


@router.post("/v1/chat/completions", responses=STREAMED)
async def create_chat_completion(body: ChatRequest, request: Request, served: Served) -> Response:
    """Answer a conversation; as one JSON document, or as events while tokens come."""
    served.require_name(body.model)
    body.require_supported()
    n = body.n or 1
    require_queue(served, n)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = body.sampling_params(served.presets, max_tokens=body.most_tokens, logprobs=logprobs)
    conversation = _conversation(body, sampling.structured_outputs is not None, served.contents())
    chat = await prepare(served, conversation)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    answers = await chat.answers(sampling, request_id, body, request.headers)
    shown = {"has_logprobs": bool(body.logprobs), "has_reasoning": body.include_reasoning is not False}
    parsers = [chat.new_parser(body.parallel_tool_calls is False) for _ in range(n)]
    choices = [ChatChoice(served.tokenizer, each, stops=sampling.stop, **shown) for each in parsers]
    head = {"id": request_id, "created": int(time.time()), "model": served.names[0]}
    usage, kind = Usage.of(chat, n, chat.thoughts), "chat.completion"
    reply = Choices(head, choices, usage, kind, f"{kind}.chunk", body.include_usage, body.has_running_usage)
    return await respond(request, answers, reply, body.is_stream)


def _conversation(body: ChatRequest, has_form: bool, contents: Contents) -> Conversation:
    chosen = chosen_functions([each.function for each in body.tools or ()], body.tool_choice)
    turns, goes_on = turns_of(body.messages, contents), bool(body.continue_final_message)
    begins = body.add_generation_prompt is not False
    given = {"has_form": has_form, "add_generation_prompt": begins}
    return Conversation.asked(body, turns, chosen, contents, goes_on, **given)
