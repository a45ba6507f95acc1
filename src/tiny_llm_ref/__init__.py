"""A tiny LLM engine: the reference solution."""

from .cache.block_pool import BlockPool
from .cache.step_layout import StepLayout
from .engine.engine import Engine
from .engine.mtp_proposer import MtpProposer
from .engine.scheduler import Scheduler
from .engine.sequence import TokenSequence
from .engine.slo.budget_controller import BudgetController
from .engine.slo.latency_policy import LatencyPolicy
from .engine.slo.step_time import StepTimeModel
from .generate.batch import batch_generate
from .generate.chunking import AdaptiveChunker, ChunkedPrefillMetrics
from .generate.prefill_scheduler import PrefillScheduler
from .generate.request import Request, stream_generate
from .generate.sampler import Sampler
from .generate.simple import simple_generate, simple_generate_with_kv_cache
from .models.build import build_model
from .models.mtp_model import MtpModel
from .models.parallel import build_parallel_model
from .speculative.draft_gate import DraftGate
from .speculative.loop import speculative_generate
from .speculative.proposers import DraftModelProposer, NgramProposer

__all__ = [
    "AdaptiveChunker",
    "BlockPool",
    "BudgetController",
    "ChunkedPrefillMetrics",
    "DraftGate",
    "DraftModelProposer",
    "Engine",
    "LatencyPolicy",
    "MtpModel",
    "MtpProposer",
    "NgramProposer",
    "PrefillScheduler",
    "Request",
    "Sampler",
    "Scheduler",
    "StepLayout",
    "StepTimeModel",
    "TokenSequence",
    "batch_generate",
    "build_model",
    "build_parallel_model",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "speculative_generate",
    "stream_generate",
]
