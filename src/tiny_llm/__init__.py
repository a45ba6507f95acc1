"""A tiny LLM engine: the reference solution."""

from .cache.block_pool import BlockPool as BlockPool
from .cache.step_layout import StepLayout as StepLayout
from .engine.engine import Engine as Engine
from .engine.mtp_proposer import MtpProposer as MtpProposer
from .engine.scheduler import Scheduler as Scheduler
from .engine.sequence import TokenSequence as TokenSequence
from .engine.slo.budget_controller import BudgetController as BudgetController
from .engine.slo.latency_policy import LatencyPolicy as LatencyPolicy
from .engine.slo.step_time import StepTimeModel as StepTimeModel
from .generate.batch_generator import batch_generate as batch_generate
from .generate.chunking import AdaptiveChunker as AdaptiveChunker
from .generate.chunking import ChunkedPrefillMetrics as ChunkedPrefillMetrics
from .generate.prefill_scheduler import PrefillScheduler as PrefillScheduler
from .generate.request import Request as Request
from .generate.request import stream_generate as stream_generate
from .generate.sampler import Sampler as Sampler
from .generate.simple import simple_generate as simple_generate
from .generate.simple import simple_generate_with_kv_cache as simple_generate_with_kv_cache
from .models.build import build_model as build_model
from .models.mtp_model import MtpModel as MtpModel
from .models.parallel import build_parallel_model as build_parallel_model
from .speculative.draft_gate import DraftGate as DraftGate
from .speculative.loop import speculative_generate as speculative_generate
from .speculative.proposers import DraftModelProposer as DraftModelProposer
from .speculative.proposers import NgramProposer as NgramProposer
