"""A chat: the engine's input from its messages, how to read the answer, and each choice of it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

from tiny_llm_lab.runtime.models.text.template_facts import TemplateFacts
from tiny_llm_lab.runtime.models.text.tokenizer import ChatTemplateError, CheckpointTokenizer, RenderedChat
from tiny_llm_lab.runtime.pictures.contents import Contents, placed
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.structured.thoughts import Thoughts
from tiny_llm_lab.serving.server.answering.answers import Answers, require_prompt, require_room, require_short
from tiny_llm_lab.serving.server.api import ApiError, ServedModel, blamed, refused
from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, ReasoningParser, ToolCallParser
from tiny_llm_lab.serving.server.chat.json_call import CLOSE, OPEN
from tiny_llm_lab.serving.server.media import file_at
from tiny_llm_lab.serving.server.schemas.sampling import UNSAID, SamplingFields, Thinking, ThinkingFields
from tiny_llm_lab.serving.server.schemas.tools import Function, Mode, call_form
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import SamplingParams, StructuredOutputs, UserError
from tiny_llm_lab.types.prompt_tokens import has_surrogate
from tiny_llm_lab.types.sampling import THINK, THINK_END

# Tokens of thoughts by effort, for templates that take no effort; more is any number.
BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}


@dataclass(frozen=True)
class Conversation:
    """What we render; the messages are in the templates' form."""

    messages: Sequence[Mapping[str, Any]]
    functions: Sequence[Function] = ()  # functions that the answer may call
    mode: Mode = "none"  # whether it must call one
    thinking: Thinking = UNSAID
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    has_form: bool = False  # the answer is a structured one, behind its thoughts
    contents: Contents = field(default_factory=Contents)  # of the messages; it has their pictures

    @classmethod
    def asked(
        cls,
        body: ThinkingFields,
        turns: Sequence[Mapping[str, Any]],
        chosen: tuple[Sequence[Function], Mode],
        contents: Contents,
        goes_on: bool,
        **more: bool,
    ) -> Self:
        """What a route is asked for. `goes_on`: the turns end with the beginning of the answer.

        `chosen` is what `chosen_functions` returns; `more` are other fields.
        """
        given: dict[str, Any] = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        return cls(turns, *chosen, thinking=body.asked_thinking(), contents=contents, **given | more)


@dataclass(frozen=True)
class PreparedChat:
    """Token ids of a conversation, and what their answer is."""

    served: ServedModel
    chat: Conversation
    token_ids: Sequence[int]
    form: StructuredOutputs | None  # form of an answer that must be a call
    thoughts: Thoughts  # open if the prompt ends with <think>
    is_thinking: bool  # the prompt ends with <think>
    budget: int | None  # tokens of thoughts; None: any number
    pictures: tuple[Picture, ...] = ()

    @property
    def num_picture_tokens(self) -> int:
        """How many of the token ids are pictures."""
        config = self.served.facts.model.pictures
        return sum(each.num_tokens(config) for each in self.pictures) if config else 0

    async def answers(
        self, sampling: SamplingParams, request_id: str, body: SamplingFields, headers: Mapping[str, str]
    ) -> Answers:
        """The answers that the engine begins, drawn by `with_form(sampling)`. Raises as `Answers.start`."""
        asked, prompts = self.with_form(sampling), [self.token_ids]
        with blamed("tools" if self.form else body.form_field if asked.structured_outputs else None):
            return await Answers.start(self.served, prompts, asked, request_id, body, headers, self.pictures)

    def with_form(self, sampling: SamplingParams) -> SamplingParams:
        """`sampling`, with the form of a call if the answer must be one, as many tokens as fit, and stop
        strings that thoughts may contain, and the budget of thoughts.
        """
        form = sampling.structured_outputs if self.form is None else self.form
        room = self.served.max_num_tokens - len(self.token_ids)
        most = None if sampling.max_tokens is None else min(sampling.max_tokens, room)
        thinking = self.is_thinking if self._has_thoughts else None
        budget = None if self.budget is None or self.budget >= (most or room) else self.budget
        close = self.served.tokenizer.template_facts.thoughts[1]  # a form begins behind it
        close += f"{OPEN}\n" if self.chat.mode == "required" else ""
        limited = replace(sampling, thinking_budget=budget, thinking_close=close)
        return replace(limited, structured_outputs=form, max_tokens=most, is_thinking=thinking)

    @property
    def _has_form(self) -> bool:
        return self.chat.has_form or self.form is not None

    @property
    def _has_thoughts(self) -> bool:
        return self.served.chat.reasoning_parser != "off" and (self.is_thinking or not self._has_form)

    def new_parser(self, is_one_call: bool = False) -> AnswerParser:
        """A parser for one of the answers; `is_one_call`: calls after the first are dropped."""
        mode, may_be_bare = self.chat.mode, _may_be_bare(self.served)
        parses_calls = mode == "required" or (mode == "auto" and not self._has_form)
        schemas = {each.name: each.parameters or {} for each in self.chat.functions}
        is_call = mode == "required" and not self.is_thinking
        return AnswerParser(
            ReasoningParser(self.is_thinking) if self._has_thoughts else None,
            ToolCallParser(schemas, is_call, may_be_bare) if parses_calls else None,
            is_one_call,
        )


async def prepare(
    served: ServedModel, chat: Conversation, param: str = "messages", is_bounded: bool = True
) -> PreparedChat:
    """Render and encode `chat`, and make its form, on a thread: a template may loop, a schema be large.

    There is room for one token of an answer at least, if it `is_bounded`; else any length is taken.
    Raises ApiError for what this model cannot take, UserError for text that is not Unicode.
    """
    _require_supported(served.tokenizer, served.chat, chat)
    read = await _pictures(served, chat.contents, param if is_bounded else "")
    key = "parameters" if _may_be_bare(served) else "arguments"

    def encode() -> tuple[StructuredOutputs | None, RenderedChat, list[int], tuple[Picture, ...], Thoughts]:
        form = call_form(chat.functions, key) if chat.mode == "required" else None
        thoughts = Thoughts.of(served.tokenizer, facts.thoughts[1])
        can_wait = served.chat.reasoning_parser != "off" and thoughts.end >= 0
        rendered = _rendered(served, chat, budget, chat.has_form or form is not None, can_wait)
        if is_bounded:
            require_short(served, rendered, None, param)
        thoughts = replace(thoughts, is_open=thoughts.end >= 0 and rendered.is_thinking)
        try:
            token_ids, own = served.tokenizer.encode(rendered), tuple(read)
        except UserError as error:
            tools = json.dumps([each.as_tool() for each in chat.functions], ensure_ascii=False)
            raise ApiError(400, str(error), param="tools" if has_surrogate(tools) else param) from None
        if own and config is not None:
            token_ids, own = placed(rendered, token_ids, own, config)
        return form, rendered, token_ids, own, thoughts

    facts, config = served.tokenizer.template_facts, served.facts.model.pictures
    budget = chosen_budget(facts, served.chat, chat.thinking)
    loop = asyncio.get_running_loop()
    form, rendered, token_ids, pictures, thoughts = await loop.run_in_executor(served.encoders, encode)
    require_prompt(served, token_ids, param)
    if is_bounded:
        require_room(served, len(token_ids), None, param)
    if THINK not in served.tokenizer.template_source:
        budget = None  # there are no thoughts to limit
    return PreparedChat(served, chat, token_ids, form, thoughts, rendered.is_thinking, budget, pictures)


async def _pictures(served: ServedModel, contents: Contents, param: str) -> Sequence[Picture]:
    """Those of `contents`, each in half of the model's length; with `param` all of them within it."""
    if served.processor is None or not contents.sources:
        return ()
    load, loop = partial(file_at, settings=served.chat), asyncio.get_running_loop()

    def check(num_tokens: int) -> None:
        if param:
            require_room(served, num_tokens, None, param, "at least ")

    asked = contents.sources, served.max_num_tokens // 2, load, check
    return await loop.run_in_executor(served.readers, served.processor.read_all, *asked)


def _may_be_bare(served: ServedModel) -> bool:
    """Whether a call may come without tags."""
    return "llama3_json" in (served.chat.tool_call_parser, served.tokenizer.template_facts.calls)


def _require_supported(tokenizer: CheckpointTokenizer, settings: ChatSettings, chat: Conversation) -> None:
    if not tokenizer.has_chat_template:
        raise ApiError(400, "this model does not have a chat template: send a prompt to /v1/completions")
    if complaint := tokenizer.template_facts.complaint:
        message = f"this model's chat template cannot be used ({complaint}): send a prompt to /v1/completions"
        raise ApiError(400, message)
    if chat.mode == "auto" and (settings.tool_call_parser == "off" or not settings.enable_auto_tool_choice):
        raise refused("tool_choice", "auto is off on this server: choose required, a function, or none")
    given = chat.thinking.variables.keys() | settings.template_variables.keys()
    if taken := sorted(tokenizer.template_options & given):
        raise ApiError(400, f"chat_template_kwargs: leave out {taken[0]}", param="chat_template_kwargs")
    if chat.continue_final_message and chat.add_generation_prompt:
        raise refused("continue_final_message", "needs add_generation_prompt: false")


def _rendered(
    served: ServedModel, chat: Conversation, budget: int | None, has_form: bool, can_wait: bool
) -> RenderedChat:
    """`can_wait`: a form may begin behind thoughts."""
    tokenizer, facts = served.tokenizer, served.tokenizer.template_facts
    variables = _variables(facts, served.chat, chat.thinking, budget)
    tools = [each.as_tool() for each in chat.functions]
    messages = _without_billing(chat.messages)
    if not messages:
        raise refused("messages", "have nothing to answer: send a message with text")
    if not chat.continue_final_message:
        messages = [*map(_without_thoughts, messages)]
    if not facts.has_tools:
        messages, tools = with_tools_as_text(messages, tools), []
    try:
        rendered = tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            picture_mark=chat.contents.mark,
            **variables,
        )
    except ChatTemplateError as error:
        is_own = chat.thinking.variables.keys() - {"enable_thinking", "preserve_thinking"}
        param = "chat_template_kwargs" if is_own else "messages"
        message = f"the model's chat template refuses this conversation ({error.reason}): change {param}"
        raise ApiError(400, message, param=param) from None
    if chat.add_generation_prompt:
        is_off, ends = not variables.get("enable_thinking", True), rendered.rstrip()
        may_begin = "enable_thinking" in facts.variables and not (is_off or ends.endswith(THINK_END))
        if rendered.is_thinking and (is_off or (has_form and not can_wait)):
            rendered = rendered.extended(facts.thoughts[1])
        elif has_form and can_wait and may_begin and not rendered.is_thinking:
            rendered = rendered.extended(facts.thoughts[0])  # a form waits for thoughts that have begun
    if chat.mode == "required" and OPEN in tokenizer.template_source and not rendered.is_thinking:
        # The call begins the way the model was trained to begin it.
        rendered = rendered.extended(f"{OPEN}\n")
    return rendered


def chosen_budget(facts: TemplateFacts, settings: ChatSettings, thinking: Thinking) -> int | None:
    """The tokens that thoughts may have; None: any number.

    A request that says none has that of its effort, if the template takes none, and at most the server's.
    """
    if thinking.budget is not None:
        return None if thinking.budget < 0 else thinking.budget
    own = -1 if facts.efforts else BUDGETS.get(thinking.effort or "", -1)
    return min((each for each in (settings.reasoning_budget, own) if each >= 0), default=None)


def _variables(
    facts: TemplateFacts, settings: ChatSettings, thinking: Thinking, budget: int | None
) -> dict[str, Any]:
    """What the template gets besides messages and tools: defaults, those of an effort, the request's own."""
    variables: dict[str, Any] = {"preserve_thinking": True} if "preserve_thinking" in facts.variables else {}
    variables |= settings.template_variables
    if thinking.effort is not None:
        variables["enable_thinking"] = thinking.effort != "none"
        if (level := facts.effort(thinking.effort)) is not None:
            variables["reasoning_effort"] = level
    variables |= thinking.variables
    return variables | ({"enable_thinking": False} if budget == 0 else {})


# Claude Code begins its system prompt with this line. It follows the question, so that no two conversations
# would share a prefix, and is for Anthropic's servers alone. Translating proxies keep it, whatever the API.
_BILLING: Final = "x-anthropic-billing-header:"


def _without_billing(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if not messages or messages[0]["role"] != "system" or not messages[0]["content"].startswith(_BILLING):
        return messages
    rest = messages[0]["content"].partition("\n")[2].lstrip("\n")
    return [*([{**messages[0], "content": rest}] if rest else []), *messages[1:]]


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
