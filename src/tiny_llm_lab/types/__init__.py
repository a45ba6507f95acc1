"""Room 1 of 6, `types`: the data and Protocols that the lab and every solution share.

It imports nothing else from the project, and every other room may import it.

- here: prompts, completions, events, sampling, errors, and the names of the packages
- `computing/`: what a model computes with: configuration, weights, caches, operators
- `scheduling/`: what a scheduler decides with: plans, steps, drafts, an engine's options

All shapes use one legend: B batch, L new tokens, S stored tokens, H query heads, G kv heads,
D head dim, E hidden size, V vocabulary. All times are seconds on one monotonic clock.
"""

from tiny_llm_lab.types.computing.draw import UNCHANGED, DrawRow, EditTable, LogitEdits, RowChanges
from tiny_llm_lab.types.computing.hybrid import (
    DeltaKernel,
    DeltaNetSizes,
    DeltaRule,
    DeltaState,
    DeltaWeights,
    HybridConfig,
    MixerKind,
)
from tiny_llm_lab.types.computing.kernel_ops import (
    CommonOps,
    KernelOps,
    KvStorage,
    LayerWeights,
    Offsets,
    Rotary,
)
from tiny_llm_lab.types.computing.layer_stack import LayerStack
from tiny_llm_lab.types.computing.memory import NO_CACHE, BatchKvCache, Memory, RequestKvCache
from tiny_llm_lab.types.computing.model import Checkpoint, Detokenizer, Mixer, Model, PagedModel, Tokenizer
from tiny_llm_lab.types.computing.model_config import ModelConfig, Task
from tiny_llm_lab.types.computing.noise import gumbel, mixed, subkeys, uniform
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.computing.rope_scaling import RopeScaling, yarn_magnitude
from tiny_llm_lab.types.computing.wanted import ALL, Wanted
from tiny_llm_lab.types.computing.weight import QuantizationMode, QuantizedWeights, Weight
from tiny_llm_lab.types.errors import UserError, require
from tiny_llm_lab.types.logits import (
    LogitsProcessor,
    RowProcessor,
    are_rows,
    changes_of,
    num_common,
    refuse_processors,
    require_usable,
)
from tiny_llm_lab.types.prompt_tokens import prompt_token_ids, require_room
from tiny_llm_lab.types.request import (
    PRIORITY_CLASSES,
    Clock,
    Completion,
    DoneEvent,
    Event,
    EventCallback,
    FinishReason,
    PrefillEvent,
    PriorityClass,
    Prompt,
    Timing,
    TokenEvent,
)
from tiny_llm_lab.types.sampling import MAX_LOGPROBS, SamplingParams, StructuredOutputs
from tiny_llm_lab.types.scheduling.arrivals import Arrival, Arrivals, report_refused
from tiny_llm_lab.types.scheduling.batch import (
    BatchSettings,
    ChunkPolicy,
    PrefillMetrics,
    PrefillPolicy,
    ReportRefused,
)
from tiny_llm_lab.types.scheduling.defaults import is_async_scheduling
from tiny_llm_lab.types.scheduling.draft import AllDrafts, Draft, DraftRequest, Proposer
from tiny_llm_lab.types.scheduling.engine import (
    EngineOutput,
    OnStep,
    Policy,
    SchedulerConfig,
    StepMode,
    StepPlan,
    StepStats,
    TokenLogprobs,
)
from tiny_llm_lab.types.scheduling.engine_options import EngineOptions
from tiny_llm_lab.types.scheduling.step_time import (
    StepCoefficients,
    StepSample,
    StepTimeError,
    attention_tokens,
)
