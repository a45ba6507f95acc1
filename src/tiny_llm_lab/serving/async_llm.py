"""The engine behind one class, for asyncio: send prompts at any time, read answers as they grow."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Self

from tiny_llm_lab.serving.async_engine.model import RunningModel, on_thread, run_model
from tiny_llm_lab.serving.options.chat_template import Turns, as_chat
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, model_settings
from tiny_llm_lab.types import EngineOutput, SamplingParams


class AsyncLLM:
    """A model and an engine on a thread of its own, which serves all requests of one event loop together.

    `async with AsyncLLM() as llm: async for output in llm.generate("Hello"): print(output.text)`
    """

    def __init__(
        self,
        model: str = "default",
        settings: EngineSettings = EngineSettings(),
        **keywords: Any,
    ) -> None:
        """Takes the settings of `LLM`; nothing is loaded before `async with`."""
        self._settings = model_settings(model, settings, keywords)
        self._model: RunningModel | None = None

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[EngineOutput]:
        """Continue a prompt, as it is given: yields what is new, the last output with its completion.

        A loop that is left early, or cancelled, ends the request within one step. Raises UserError for a
        request that can never be served, and RuntimeError outside of `async with`.
        """
        running = self._running
        token_ids = await running.encode(prompt) if isinstance(prompt, str) else prompt
        outputs = running.engine.generate(token_ids, sampling, request_id)
        async with aclosing(outputs):  # leaving the loop ends it at once
            async for output in outputs:
                yield output

    def chat(
        self,
        messages: str | Turns,
        sampling: SamplingParams = SamplingParams(),
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[EngineOutput]:
        """Answer a question, or a conversation, in the model's chat template; otherwise as `generate`.

        The model thinks first if `sampling` has a thinking_budget above 0 and the template has a switch.
        """
        prompt = as_chat(self._running.tokenizer, messages, thinks=bool(sampling.thinking_budget))
        return self.generate(prompt, sampling, request_id=request_id)

    @property
    def _running(self) -> RunningModel:
        if self._model is None:
            raise RuntimeError("load a model first: use `async with AsyncLLM(...) as llm`")
        return self._model

    async def __aenter__(self) -> Self:
        """Load the model and start the engine. Raises UserError as `LLM`."""
        self._model = await run_model(on_thread(self._settings))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all running requests and free the memory."""
        running, self._model = self._running, None
        await running.engine.stop()
