"""Turns a conversation into the engine's input, and says how to read its answer."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tiny_llm_lab.runtime.models.text.template_facts import TemplateFacts
from tiny_llm_lab.runtime.models.text.tokenizer import ChatTemplateError, CheckpointTokenizer, RenderedChat
from tiny_llm_lab.serving.server.answering.answers import require_prompt, require_room, require_short
from tiny_llm_lab.serving.server.api import ApiError, ServedModel
from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser
from tiny_llm_lab.serving.server.chat.json_call import CLOSE, OPEN
from tiny_llm_lab.serving.server.chat.tool_calls import ToolCallParser
from tiny_llm_lab.serving.server.schemas.tools import Function, Mode, call_form
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import SamplingParams, StructuredOutputs
from tiny_llm_lab.types.sampling import THINK, THINK_END


@dataclass(frozen=True)
class Conversation:
    """What we render; the messages are in the templates' form."""

    messages: Sequence[Mapping[str, Any]]
    functions: Sequence[Function] = ()  # functions that the answer may call
    mode: Mode = "none"  # whether it must call one
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None  # one of `LEVELS`
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    has_form: bool = False  # a structured answer begins at once, without reasoning


@dataclass(frozen=True)
class PreparedChat:
    """Token ids, and what their answer is."""

    token_ids: Sequence[int]
    form: StructuredOutputs | None  # form of an answer that must be a call
    settings: ChatSettings
    functions: Sequence[Function]
    mode: Mode
    has_form: bool
    is_thinking: bool  # the prompt ends with <think>
    room: int  # tokens that an answer may have

    def with_form(self, sampling: SamplingParams) -> SamplingParams:
        """`sampling`, with the form of a call if the answer must be one, as many tokens as fit, and stop
        strings that thoughts may contain.
        """
        form = sampling.structured_outputs if self.form is None else self.form
        most = None if sampling.max_tokens is None else min(sampling.max_tokens, self.room)
        thinking = self.is_thinking if self._has_thoughts else None
        return replace(sampling, structured_outputs=form, max_tokens=most, is_thinking=thinking)

    @property
    def _has_thoughts(self) -> bool:
        return self.settings.reasoning_parser != "off" and not self.has_form

    def new_parser(self, is_one_call: bool = False) -> AnswerParser:
        """A parser for one of the answers; `is_one_call`: calls after the first are dropped."""
        parses_calls = self.mode == "required" or (self.mode == "auto" and not self.has_form)
        schemas = {each.name: each.parameters or {} for each in self.functions}
        return AnswerParser(
            ReasoningParser(self.is_thinking) if self._has_thoughts else None,
            ToolCallParser(schemas, self.mode == "required") if parses_calls else None,
            is_one_call,
        )


async def prepare(served: ServedModel, chat: Conversation, param: str = "messages") -> PreparedChat:
    """Render and encode `chat`, and make its form, on a thread: a template may loop, a schema be large.

    There is room for one token of an answer at least. Raises ApiError for what this model cannot take,
    UserError for text that is not Unicode.
    """
    _require_supported(served.tokenizer, served.chat, chat)

    def encode() -> tuple[StructuredOutputs | None, RenderedChat, list[int]]:
        form = call_form(chat.functions) if chat.mode == "required" else None
        rendered = _rendered(served.tokenizer, chat, chat.has_form or form is not None)
        require_short(served, rendered, None, param)
        return form, rendered, served.tokenizer.encode(rendered)

    form, rendered, token_ids = await asyncio.get_running_loop().run_in_executor(served.encoders, encode)
    require_prompt(served, token_ids, param)
    require_room(served, len(token_ids), None, param)
    return PreparedChat(
        token_ids,
        form,
        served.chat,
        chat.functions,
        chat.mode,
        chat.has_form or form is not None,
        _is_thinking(rendered),
        served.max_num_tokens - len(token_ids),
    )


def _require_supported(tokenizer: CheckpointTokenizer, settings: ChatSettings, chat: Conversation) -> None:
    if not tokenizer.has_chat_template:
        raise ApiError(400, "this model does not have a chat template: send a prompt to /v1/completions")
    if complaint := tokenizer.template_facts.complaint:
        message = f"this model's chat template cannot be used ({complaint}): send a prompt to /v1/completions"
        raise ApiError(400, message)
    if chat.mode == "auto" and (settings.tool_call_parser == "off" or not settings.enable_auto_tool_choice):
        message = "tool_choice auto is off on this server: choose required, a function, or none"
        raise ApiError(400, message, param="tool_choice")
    if taken := sorted(tokenizer.template_options & chat.template_kwargs.keys()):
        raise ApiError(400, f"chat_template_kwargs: leave out {taken[0]}", param="chat_template_kwargs")
    if chat.continue_final_message and chat.add_generation_prompt:
        message = "continue_final_message needs add_generation_prompt: false"
        raise ApiError(400, message, param="continue_final_message")


def _rendered(tokenizer: CheckpointTokenizer, chat: Conversation, has_form: bool) -> RenderedChat:
    tools = [each.as_tool() for each in chat.functions]
    messages = chat.messages if chat.continue_final_message else [*map(_without_thoughts, chat.messages)]
    if not tokenizer.template_facts.has_tools:
        messages, tools = with_tools_as_text(messages, tools), []
    try:
        rendered = tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            **{**_thinking(tokenizer.template_facts, chat.effort), **chat.template_kwargs},
        )
    except ChatTemplateError as error:
        message = f"the model's chat template refuses this conversation ({error.reason}): change the messages"
        raise ApiError(400, message, param="messages") from None
    if has_form and _is_thinking(rendered):
        rendered = rendered.extended(f"\n{THINK_END}\n\n")
    if chat.mode == "required" and OPEN in tokenizer.template_source:
        # The call begins the way the model was trained to begin it.
        rendered = rendered.extended(f"{OPEN}\n")
    return rendered


def _thinking(facts: TemplateFacts, effort: str | None) -> dict[str, Any]:
    """The variables of an effort: a switch, and the nearest level if the template has any."""
    if effort is None:
        return {}
    level = facts.effort(effort)
    return {"enable_thinking": effort != "none"} | ({} if level is None else {"reasoning_effort": level})


def _is_thinking(rendered: RenderedChat) -> bool:
    # In the last part only, because a user's own <think> is split in two.
    return rendered.parts[-1].rstrip().endswith(THINK)


def _without_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an answer thought, sent back within its content, is for the template to keep or to drop."""
    content = message["content"].lstrip()
    if message["role"] != "assistant" or not content.startswith(THINK):
        return message
    thoughts, close, rest = content.removeprefix(THINK).partition(THINK_END)
    if not close:
        return message
    return {"reasoning_content": thoughts.strip("\n"), **message, "content": rest.lstrip("\n")}


_INTRODUCTION: Final = f"""\
You can call functions. To call one, answer in this form, with the name of the function and its arguments as
a JSON object:
{OPEN}
{{"name": "...", "arguments": {{...}}}}
{CLOSE}
These are the functions and the JSON schemas of their parameters, one a line:"""


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """`messages` with `tools`, calls and their results as text, which such a template would drop."""
    turns = [_as_text(each) for each in messages]
    if not tools:
        return turns
    lines = [_INTRODUCTION, *(json.dumps(each["function"], ensure_ascii=False) for each in tools)]
    if turns and turns[0]["role"] == "system":
        first = turns.pop(0)
        lines.insert(0, f"{first['content']}\n")
    return [{"role": "system", "content": "\n".join(lines)}, *turns]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = dict(message)
    calls = turn.pop("tool_calls", ())
    if calls:
        written = [f"{OPEN}\n{json.dumps(each['function'], ensure_ascii=False)}\n{CLOSE}" for each in calls]
        turn["content"] = "\n".join([turn["content"], *written] if turn["content"] else written)
    if turn["role"] == "tool":
        content = f"<tool_response>\n{turn['content']}\n</tool_response>"
        turn = {"role": "user", "content": content}
    return turn
