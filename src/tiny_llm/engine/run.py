"""Many prompts through one engine: who has arrived goes in, and each has its completion in the end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiny_llm_lab.types import Clock, Completion, EventCallback, Prompt

if TYPE_CHECKING:
    from .engine import Engine


class EngineRun:
    """The prompts of one call of `Engine.generate`, by the way each has gone."""

    def __init__(
        self,
        engine: "Engine",
        prompts: Sequence[str | Sequence[int] | Prompt],
        on_event: EventCallback | None,
        clock: Clock,
    ) -> None:
        """Queue the prompts by arrival, on `clock` from now on; compute nothing.

        Raises UserError for a string in place of a list, ValueError when the engine has requests already.
        """
        raise NotImplementedError("task 3.4.8")

    def run(self) -> list[Completion]:
        """Step the engine until all prompts have their completions; return these in prompt order.

        Whatever ends it early, an interrupt or an error, takes the requests out of the engine.
        """
        raise NotImplementedError("task 3.4.8")
