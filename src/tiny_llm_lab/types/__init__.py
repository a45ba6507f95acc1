"""The nouns that the lab and every solution share; this module imports nothing of the course.

Shapes use one legend throughout: B batch, L new tokens, S stored tokens, H query heads, G kv heads,
D head dim, E hidden size, V vocabulary. All times are seconds of one monotonic clock.
"""

from tiny_llm_lab.types.draft import Draft, DraftSampler, Proposer
from tiny_llm_lab.types.engine import EngineOutput, Policy, SchedulerConfig, StepMode, StepPlan, TokenLogprobs
from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.model import (
    Checkpoint,
    Detokenizer,
    KvCache,
    Model,
    ModelConfig,
    PagedModel,
    QuantizedWeights,
    RequestKvCache,
    Tokenizer,
    Weight,
)
from tiny_llm_lab.types.request import (
    Clock,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    FinishReason,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    TokenEvent,
)

__all__ = [
    "Checkpoint",
    "Clock",
    "Completion",
    "Detokenizer",
    "DoneEvent",
    "Draft",
    "DraftSampler",
    "EngineOutput",
    "Event",
    "EventCallback",
    "FinishReason",
    "KvCache",
    "Model",
    "ModelConfig",
    "PagedModel",
    "Policy",
    "PrefillEvent",
    "Prompt",
    "Proposer",
    "QuantizedWeights",
    "RequestKvCache",
    "SamplingParams",
    "SchedulerConfig",
    "StepMode",
    "StepPlan",
    "Timing",
    "TokenEvent",
    "TokenLogprobs",
    "Tokenizer",
    "UserError",
    "Weight",
]
