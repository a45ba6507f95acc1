"""The engine behind one class: prompts in, answers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tiny_llm_lab.runtime.structured.grammars import FORM_TIMEOUT_S, Grammars, processors_for
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.options.chat_template import Turns
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, model_settings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.options.picture_chat import PictureChat
from tiny_llm_lab.types import Completion, EventCallback, OnStep, Prompt, Proposer, SamplingParams

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine


class LLM:
    """A model and the engine that serves it."""

    def __init__(
        self,
        model: str = "default",
        settings: EngineSettings = EngineSettings(),
        *,
        proposer: Proposer | None = None,
        on_step: OnStep | None = None,
        **keywords: Any,
    ) -> None:
        """Load `model`: "default" (shipped), a name such as "qwen3-0.6b", a hub id, a folder, or random:NAME.

        `keywords` are fields of `EngineSettings` and of its config, a `SchedulerConfig`, which change
        `settings` (kv_cache_memory="2G", speculate="ngram", max_model_len=8192), and how the model is loaded:
        solution, device, dtype, threads, activation_bits. They are named as the flags of `serve`, whose
        --help says what they mean.
        Without a config a request has at most 4,096 tokens, and on Metal steps are measured to take 0.1 s.
        `on_step` is called after every step. Raises UserError for a model or a setting that cannot be
        served, and TypeError for a keyword that is no setting.
        """
        chosen = model_settings(model, settings, keywords)
        loaded, built = load_and_build(chosen, on_step, proposer)
        self._serve(loaded, built, chosen.engine.form_timeout_s)

    @classmethod
    def of(cls, loaded: Loaded, engine: AnyEngine) -> Self:
        """A model that is loaded, and its engine."""
        llm = cls.__new__(cls)
        llm._serve(loaded, engine)
        return llm

    def _serve(self, loaded: Loaded, engine: AnyEngine, form_timeout_s: float = FORM_TIMEOUT_S) -> None:
        self.checkpoint, self.engine = loaded.checkpoint, engine
        vocab_size = loaded.model.config.vocab_size
        self._grammars = Grammars(self.checkpoint.tokenizer, vocab_size, form_timeout_s)
        own, most = loaded.checkpoint, engine.core.scheduler.max_num_tokens
        self._chat = PictureChat(own.tokenizer, own.path, loaded.model.config.pictures, most)

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int] | Prompt],
        sampling: SamplingParams | None = None,
        on_event: EventCallback | None = None,
    ) -> list[Completion]:
        """Continue every prompt, as it is given; one completion per prompt, in order.

        `sampling` serves prompts that bring none of their own; None is greedy. `on_event` is called with
        every chunk, token and end as it happens. Raises UserError for structured_outputs that cannot be used.
        """
        given = [prompts] if isinstance(prompts, str) else prompts
        chosen = sampling or SamplingParams()
        full = [each if isinstance(each, Prompt) else Prompt(each, chosen) for each in given]
        return self.engine.generate([self._with_grammar(each) for each in full], on_event)

    def chat(
        self,
        messages: str | Sequence[str | Turns],
        sampling: SamplingParams | None = None,
        on_event: EventCallback | None = None,
    ) -> list[Completion]:
        """Answer questions, or conversations, in the model's chat template; otherwise as `generate`.

        The model thinks first if `sampling` has a thinking_budget above 0 and the template has a switch. A
        content may be a list of parts, with pictures: see `PictureChat.prompt`.
        """
        given = [messages] if isinstance(messages, str) else messages
        return self.generate([self.asked(each, sampling) for each in given], sampling, on_event)

    def asked(self, messages: str | Turns, sampling: SamplingParams | None = None) -> Prompt:
        """Returns a question or a conversation as the prompt that `chat` makes of it. Raises as `chat`."""
        content, pictures, chosen = self._chat.prompt(messages, sampling or SamplingParams())
        if isinstance(content, str):
            return Prompt(content, chosen)
        own = self.engine.core.options.prefix_disk.with_pictures(content, pictures)
        return Prompt(content, chosen, pictures=own)

    def _with_grammar(self, prompt: Prompt) -> Prompt:
        end = () if prompt.sampling.thinking_budget is None else prompt.content
        if isinstance(end, str):  # only its end says whether it opens the thoughts that have the budget
            end = self.checkpoint.tokenizer.encode(end[-64:])
        own = processors_for(prompt.sampling, self._grammars, end)
        return replace(prompt, processors=(*prompt.processors, *own)) if own else prompt

    def release(self) -> None:
        """Free the memory of keys and values; no prompt can be answered afterwards."""
        self.engine.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
