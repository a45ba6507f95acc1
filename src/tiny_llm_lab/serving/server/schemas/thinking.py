"""How much a request lets its model think: the fields of all APIs, read in one place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tiny_llm_lab.runtime.models.text.template_facts import LEVELS
from tiny_llm_lab.serving.server.api import ApiError
from tiny_llm_lab.serving.server.schemas.sampling import SamplingFields

_Value = TypeVar("_Value")
_THINKS: Final = {"enabled": True, "adaptive": True, "disabled": False}  # by thinking.type


@dataclass(frozen=True)
class Thinking:
    """What a request says about it."""

    effort: str | None = None  # one of `LEVELS`
    budget: int | None = None  # tokens of thoughts; -1: any number; None: nothing is said
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template


UNSAID: Final = Thinking()


class ThinkingFields(SamplingFields):
    """The fields of a route with a chat template."""

    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None  # OpenRouter's
    thinking: dict[str, Any] | None = None  # Anthropic's and DeepSeek's
    enable_thinking: bool | None = None  # DashScope's
    preserve_thinking: bool | None = None
    think: bool | str | None = None  # Ollama's
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's

    def effort(self) -> str | None:
        """How much the model may think. Raises ApiError for a level that nobody knows."""
        levels = self.efforts()
        for name, level in levels.items():
            if level is not None and level not in LEVELS:
                message = f"{name} must be one of {', '.join(LEVELS)}, not {level!r}"
                raise ApiError(400, message, param=name)
        return next(filter(None, levels.values()), None)

    def efforts(self) -> dict[str, Any]:
        """The levels by field, the most exact first."""
        think = self.think if isinstance(self.think, str) else None
        other = (self.reasoning or {}).get("effort")
        return {"reasoning_effort": self.reasoning_effort, "reasoning.effort": other, "think": think}

    def asked_thinking(self) -> Thinking:
        """All that the request says. Raises ApiError for a value that nobody knows.

        A switch that is off wins, and so does a variable in chat_template_kwargs.
        """
        own, effort = dict(self.chat_template_kwargs or {}), self.effort()
        if own.get("reasoning_effort") in LEVELS:  # the template may take others
            effort = own.pop("reasoning_effort")
        switches = [each for each in self._switches() if each is not None]
        switches += [False] * (effort == "none")
        variables = {"enable_thinking": all(switches)} if switches else {}
        if self.preserve_thinking is not None:
            variables["preserve_thinking"] = self.preserve_thinking
        return Thinking(effort, self.budget(), variables | own)

    def _switches(self) -> Iterator[bool | None]:
        reasoning = self.reasoning or {}
        yield self.enable_thinking
        yield self.think if isinstance(self.think, bool) else None
        yield None if self.thinking is None else known_type(self.thinking, "thinking", _THINKS)
        yield None if reasoning.get("max_tokens") is None else True
        if not isinstance(enabled := reasoning.get("enabled"), bool | None):
            raise ApiError(400, "reasoning.enabled must be true or false", param="reasoning.enabled")
        yield enabled

    def budgets(self) -> dict[str, Any]:
        """See `SamplingFields.budgets`."""
        return super().budgets() | {
            "reasoning.max_tokens": (self.reasoning or {}).get("max_tokens"),
            "thinking.budget_tokens": (self.thinking or {}).get("budget_tokens"),
            "chat_template_kwargs.thinking_budget": (self.chat_template_kwargs or {}).get("thinking_budget"),
        }


def known_type(given: Mapping[str, Any], name: str, values: Mapping[str, _Value]) -> _Value:
    """What `values` has for the type of `given`. Raises ApiError for a type that is not there."""
    kind = str(given.get("type"))
    if kind not in values:
        message = f"{name}.type must be one of {', '.join(values)}, not {kind!r}"
        raise ApiError(400, message, param=f"{name}.type")
    return values[kind]
