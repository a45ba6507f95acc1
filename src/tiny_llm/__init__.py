"""A tiny LLM engine: yours."""

from .acceptance import PositionSampler, accept, accept_with_draft_probs, standing_tokens
from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .batch import BatchGenerator, batch_generate
from .block_pool import BlockPool, OutOfBlocksError
from .block_tables import BlockTables
from .chunking import (
    AdaptiveChunker,
    ChunkedPrefillMetrics,
    chunk_spans,
    chunked_attention_mask,
    select_optimal_chunk_size,
)
from .drafts import DraftModelProposer, NgramProposer
from .embedding import Embedding
from .engine import Engine
from .engine_request import EngineRequest
from .engine_run import EngineRun
from .engine_step import EngineStep
from .flash_attention import flash_attention
from .fused import can_fuse, fused_layer
from .generate import TextStream, simple_generate, simple_generate_with_kv_cache
from .kv_cache import BatchingKvCache, TinyKvFullCache
from .kv_quantization import dequantize_rows, quantize_rows
from .latency_policy import DecodeWork, LatencyPolicy, PrefillWork
from .layer_norm import RMSNorm
from .logprobs import read_logprobs, score_tokens
from .metal_kernels import flash_attention_metal, paged_attention_metal, quantized_matmul_metal
from .moe import QwenMoE, expert_linear, group_by_expert, route
from .paged_attention import PagedAttention, PagedLayer
from .paged_kv_cache import PagedKvCache, StepLayout
from .parallel import (
    build_parallel_model,
    shard_checkpoint,
    shard_columns,
    shard_heads,
    shard_inner,
    shard_rows,
)
from .policies import (
    MAX_WAITING_STEPS,
    Lineup,
    StepBudget,
    align_to_grid,
    fair_shares,
    order_key,
    reject_narrow_grid,
    turns,
)
from .positional_encoding import RoPE
from .prefix_cache import BlockKey, PrefixCache, hash_block
from .prefix_walk import PrefixWalk
from .quantize import dequantize_weights, quantized_linear, quantized_matmul
from .qwen import QwenMLP, QwenModel, QwenMultiHeadAttention, QwenTransformerBlock, build_model
from .request import Request, stream_generate
from .sampler import apply_min_p, apply_top_k, apply_top_p, make_sampler, truncated_logits
from .scheduled_request import ScheduledRequest, clamp_new_tokens, num_prefill_steps
from .scheduler import Scheduler
from .speculative import SpecDecodeStats, speculative_generate
from .step_ahead import step_behind
from .step_pacer import StepPacer
from .step_time import StepSample, StepTimeError, StepTimeModel, context_work

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
    "Lineup",
    "NgramProposer",
    "OutOfBlocksError",
    "PagedAttention",
    "PagedKvCache",
    "PagedLayer",
    "PositionSampler",
    "PrefillWork",
    "PrefixCache",
    "PrefixWalk",
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
