"""A tiny LLM engine: yours."""

from .cache.block_pool import BlockPool, OutOfBlocksError
from .cache.kv_cache import BatchingKvCache, TinyKvFullCache, reserve_ahead
from .cache.kv_quantization import dequantize_rows, quantize_rows
from .cache.paged_attention import PagedAttention, PagedLayer
from .cache.paged_kv_cache import PagedKvCache
from .cache.prefix_cache import BlockKey, PrefixCache, hash_block
from .cache.prefix_match import PrefixMatch
from .cache.step_layout import StepLayout
from .engine.block_manager import BlockTables
from .engine.engine import Engine
from .engine.next_step import step_behind
from .engine.policies import (
    MAX_WAITING_STEPS,
    Lineup,
    StepBudget,
    align_to_grid,
    fair_shares,
    order_key,
    reject_narrow_grid,
    turns,
)
from .engine.request_state import EngineRequest
from .engine.run import EngineRun
from .engine.scheduler import Scheduler
from .engine.sequence import ScheduledRequest, clamp_new_tokens, num_prefill_steps
from .engine.slo.budget_controller import StepPacer
from .engine.slo.latency_policy import DecodeWork, LatencyPolicy, PrefillWork
from .engine.slo.step_time import StepSample, StepTimeError, StepTimeModel, context_work
from .engine.step import EngineStep
from .generate.batch import BatchGenerator, batch_generate
from .generate.chunking import (
    AdaptiveChunker,
    ChunkedPrefillMetrics,
    chunk_spans,
    chunked_attention_mask,
    select_optimal_chunk_size,
)
from .generate.generate import TextStream, simple_generate, simple_generate_with_kv_cache
from .generate.logprobs import read_logprobs, score_tokens
from .generate.request import Request, stream_generate
from .generate.sampler import apply_min_p, apply_top_k, apply_top_p, make_sampler, truncated_logits
from .kernels.metal import flash_attention_metal, paged_attention_metal, quantized_matmul_metal
from .layers.attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .layers.basics import linear, silu, softmax
from .layers.embedding import Embedding
from .layers.flash_attention import flash_attention
from .layers.layer_norm import RMSNorm
from .layers.moe import QwenMoE, expert_linear, group_by_expert, route
from .layers.positional_encoding import RoPE
from .layers.quantize import dequantize_weights, quantized_linear, quantized_matmul
from .models.fused import LayerParts, can_fuse, fused_layer
from .models.parallel import (
    build_parallel_model,
    shard_checkpoint,
    shard_columns,
    shard_heads,
    shard_inner,
    shard_rows,
)
from .models.qwen import QwenMLP, QwenModel, QwenMultiHeadAttention, QwenTransformerBlock, build_model
from .speculative.loop import SpecDecodeStats, speculative_generate
from .speculative.proposers import DraftModelProposer, NgramProposer
from .speculative.verify import PositionSampler, accept, accept_with_draft_probs, standing_tokens

__all__ = [
    "MAX_WAITING_STEPS",
    "AdaptiveChunker",
    "BatchGenerator",
    "BatchingKvCache",
    "BlockKey",
    "BlockPool",
    "BlockTables",
    "ChunkedPrefillMetrics",
    "DecodeWork",
    "DraftModelProposer",
    "Embedding",
    "Engine",
    "EngineRequest",
    "EngineRun",
    "EngineStep",
    "LatencyPolicy",
    "LayerParts",
    "Lineup",
    "NgramProposer",
    "OutOfBlocksError",
    "PagedAttention",
    "PagedKvCache",
    "PagedLayer",
    "PositionSampler",
    "PrefillWork",
    "PrefixCache",
    "PrefixMatch",
    "QwenMLP",
    "QwenMoE",
    "QwenModel",
    "QwenMultiHeadAttention",
    "QwenTransformerBlock",
    "RMSNorm",
    "Request",
    "RoPE",
    "ScheduledRequest",
    "Scheduler",
    "SimpleMultiHeadAttention",
    "SpecDecodeStats",
    "StepBudget",
    "StepLayout",
    "StepPacer",
    "StepSample",
    "StepTimeError",
    "StepTimeModel",
    "TextStream",
    "TinyKvFullCache",
    "accept",
    "accept_with_draft_probs",
    "align_to_grid",
    "apply_min_p",
    "apply_top_k",
    "apply_top_p",
    "batch_generate",
    "build_model",
    "build_parallel_model",
    "can_fuse",
    "causal_mask",
    "chunk_spans",
    "chunked_attention_mask",
    "clamp_new_tokens",
    "context_work",
    "dequantize_rows",
    "dequantize_weights",
    "expert_linear",
    "fair_shares",
    "flash_attention",
    "flash_attention_metal",
    "fused_layer",
    "group_by_expert",
    "hash_block",
    "linear",
    "make_sampler",
    "num_prefill_steps",
    "order_key",
    "paged_attention_metal",
    "quantize_rows",
    "quantized_linear",
    "quantized_matmul",
    "quantized_matmul_metal",
    "read_logprobs",
    "reject_narrow_grid",
    "reserve_ahead",
    "route",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "score_tokens",
    "select_optimal_chunk_size",
    "shard_checkpoint",
    "shard_columns",
    "shard_heads",
    "shard_inner",
    "shard_rows",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "softmax",
    "speculative_generate",
    "standing_tokens",
    "step_behind",
    "stream_generate",
    "truncated_logits",
    "turns",
]
