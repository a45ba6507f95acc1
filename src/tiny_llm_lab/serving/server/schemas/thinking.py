"""How much a request lets its model think: the fields of all APIs, read in one place."""

from collections.abc import Mapping
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
        levels = [known_effort(level, name) for name, level in self.efforts().items()]
        return next((each for each in levels if each is not None), None)

    def asked_thinking(self) -> Thinking:
        """All that the request says. Raises ApiError for a value that nobody knows.

        A switch that is off wins, and so does a variable in chat_template_kwargs.
        """
        own = dict(self.chat_template_kwargs or {})
        effort, level = self.effort(), own.get("reasoning_effort")
        if isinstance(level, str) and level in LEVELS:  # the template may take others
            effort = own.pop("reasoning_effort")
        switches = [each for each in self.switches().values() if each is not None]
        switches += [False] if effort == "none" else []
        variables = {"enable_thinking": all(switches)} if switches else {}
        if self.preserve_thinking is not None:
            variables["preserve_thinking"] = self.preserve_thinking
        variables |= own
        return Thinking(effort, self.budget(), variables)

    def efforts(self) -> dict[str, object]:
        """The levels by field, the most exact first."""
        return {
            "reasoning_effort": self.reasoning_effort,
            "reasoning.effort": (self.reasoning or {}).get("effort"),
            "think": self.think if isinstance(self.think, str) else None,
        }

    def switches(self) -> dict[str, bool | None]:
        """Whether the model may think, by field. Raises ApiError."""
        reasoning = self.reasoning or {}
        enabled = reasoning.get("enabled")
        if enabled is not None and not isinstance(enabled, bool):
            raise ApiError(
                400, f"reasoning.enabled must be true or false, not {enabled!r}", param="reasoning.enabled"
            )
        return {
            "enable_thinking": self.enable_thinking,
            "reasoning.enabled": enabled,
            "reasoning.max_tokens": None if reasoning.get("max_tokens") is None else True,
            "thinking": None if self.thinking is None else known_type(self.thinking, "thinking", _THINKS),
            "think": self.think if isinstance(self.think, bool) else None,
        }

    def budgets(self) -> dict[str, object]:
        """See `SamplingFields.budgets`."""
        return super().budgets() | {
            "reasoning.max_tokens": (self.reasoning or {}).get("max_tokens"),
            "thinking.budget_tokens": (self.thinking or {}).get("budget_tokens"),
            "chat_template_kwargs.thinking_budget": (self.chat_template_kwargs or {}).get("thinking_budget"),
        }


def known_effort(level: object, param: str) -> str | None:
    """`level` of the field `param`. Raises ApiError unless it is one of `LEVELS` or None."""
    if level is None or (isinstance(level, str) and level in LEVELS):
        return level
    raise ApiError(400, f"{param} must be one of {', '.join(LEVELS)}, not {level!r}", param=param)


def known_type(given: Mapping[str, Any], name: str, values: Mapping[str, _Value]) -> _Value:
    """What `values` has for the type of `given`. Raises ApiError for a type that is not there."""
    kind = str(given.get("type"))
    if kind not in values:
        message = f"{name}.type must be one of {', '.join(values)}, not {kind!r}"
        raise ApiError(400, message, param=f"{name}.type")
    return values[kind]
