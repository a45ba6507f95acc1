"""The engine behind one name: prompts in, answers out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import mlx.core as mx

from tiny_llm_lab.runtime.kv_memory import AUTO, engine_num_blocks
from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.models.first_logits import require_numbers
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.structured.grammars import Grammars, processors_for
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.types import (
    Completion,
    EngineOptions,
    EventCallback,
    OnStep,
    Prompt,
    Proposer,
    SamplingParams,
    SchedulerConfig,
)


class LLM:
    """A model and the engine that serves it."""

    def __init__(
        self,
        model: str = "default",
        *,
        solution: str = "ref",
        dtype: mx.Dtype | None = None,
        config: SchedulerConfig | None = None,
        kv_cache_memory: str = AUTO,
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        proposer: Proposer | None = None,
        async_scheduling: bool | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        """Load `model`: "default" (shipped), a name such as "qwen3-0.6b", a hub id, a folder, or random:NAME.

        `config` None: `SchedulerConfig` for at most 4,096 tokens a request. `kv_cache_memory` bounds the keys
        and values: "512M", "2G", a share such as "0.5" of what is free, or "auto", which is half of it and on
        a CPU 1 GiB at most. The rest as in `EngineOptions`. Raises UserError for a model or a setting
        that cannot be served.
        """
        package = load_serving(solution)
        self.checkpoint = load_checkpoint(model, dtype=dtype)
        built = package.build_model(self.checkpoint)
        require_numbers(built, self.checkpoint, solution)
        limit = min(built.config.max_position_embeddings, SchedulerConfig.max_model_len)
        config = config or SchedulerConfig(max_model_len=limit)
        self._grammars = Grammars(self.checkpoint.tokenizer, built.config.vocab_size)
        dtype = self.checkpoint.dtype
        num_blocks = engine_num_blocks(built.config, dtype, block_size, config, kv_cache_memory)
        self.engine = package.Engine(
            built,
            self.checkpoint.tokenizer,
            config,
            EngineOptions(
                num_blocks=num_blocks,
                block_size=block_size,
                enable_prefix_caching=enable_prefix_caching,
                proposer=proposer,
                async_scheduling=async_scheduling,
                on_step=on_step,
            ),
        )

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
        messages: str | Sequence[str | Sequence[Mapping[str, str]]],
        sampling: SamplingParams | None = None,
        on_event: EventCallback | None = None,
    ) -> list[Completion]:
        """Answer questions, or conversations, in the model's chat template; otherwise as `generate`."""
        given = [messages] if isinstance(messages, str) else messages
        texts = [as_chat(self.checkpoint.tokenizer, each) for each in given]
        return self.generate(texts, sampling, on_event)

    def _with_grammar(self, prompt: Prompt) -> Prompt:
        own = processors_for(prompt.sampling, self._grammars)
        return replace(prompt, processors=(*prompt.processors, *own)) if own else prompt

    def release(self) -> None:
        """Give the memory of keys and values back; no prompt can be answered afterwards."""
        self.engine.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
