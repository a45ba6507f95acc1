"""The engine behind one class, for asyncio: send prompts at any time, read answers as they grow."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any, Self

from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.async_engine.model import RunningModel, on_thread, run_model
from tiny_llm_lab.serving.options.chat_template import Turns
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, model_settings
from tiny_llm_lab.serving.options.picture_chat import PictureChat
from tiny_llm_lab.types import EngineOutput, SamplingParams


class AsyncLLM:
    """A model and an engine on a thread of its own, which serves all requests of one event loop together.

    `async with AsyncLLM() as llm: async for output in llm.generate("Hello"): print(output.text)`
    """

    def __init__(
        self, model: str = "default", settings: EngineSettings = EngineSettings(), **keywords: Any
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
        pictures: tuple[Picture, ...] = (),
    ) -> AsyncIterator[EngineOutput]:
        """Continue a prompt, as it is given: yields what is new, the last output with its completion.

        `pictures` are those of its token ids, as `chat` makes them.

        A loop that is left early, or cancelled, ends the request within one step. Raises UserError for a
        request that can never be served, and RuntimeError outside of `async with`.
        """
        running = self._running
        token_ids = await running.encode(prompt) if isinstance(prompt, str) else prompt
        outputs = running.engine.generate(token_ids, sampling, request_id, pictures)
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

        The model thinks first if `sampling` has a thinking_budget above 0 and the template has a switch. A
        content may be a list of parts, with pictures: see `PictureChat.prompt`.
        """
        prompt, pictures, chosen = self._chat.prompt(messages, sampling)
        return self.generate(prompt, chosen, request_id=request_id, pictures=pictures)

    @cached_property
    def _chat(self) -> PictureChat:
        own, facts = self._running, self._running.facts
        return PictureChat(own.tokenizer, facts.folder, facts.model.pictures, own.max_num_tokens)

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
