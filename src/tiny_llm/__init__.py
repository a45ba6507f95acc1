"""A tiny LLM engine: yours."""

from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .batch import BatchGenerator, batch_generate
from .chunking import (
    AdaptiveChunker,
    ChunkedPrefillMetrics,
    chunk_spans,
    chunked_attention_mask,
    select_optimal_chunk_size,
)
from .embedding import Embedding
from .flash_attention import flash_attention
from .fused import can_fuse, fused_layer
from .generate import TextStream, simple_generate, simple_generate_with_kv_cache
from .kv_cache import BatchingKvCache, TinyKvFullCache
from .layer_norm import RMSNorm
from .metal_kernels import flash_attention_metal, paged_attention_metal, quantized_matmul_metal
from .paged_attention import PagedAttention, PagedLayer
from .paged_kv_cache import PagedKvCache, StepLayout
from .positional_encoding import RoPE
from .quantize import dequantize_weights, quantized_linear, quantized_matmul
from .qwen import QwenMLP, QwenModel, QwenMultiHeadAttention, QwenTransformerBlock, build_model
from .request import Request, stream_generate
from .sampler import apply_min_p, apply_top_k, apply_top_p, make_sampler

__all__ = [
    "AdaptiveChunker",
    "BatchGenerator",
    "BatchingKvCache",
    "ChunkedPrefillMetrics",
    "Embedding",
    "PagedAttention",
    "PagedKvCache",
    "PagedLayer",
    "QwenMLP",
    "QwenModel",
    "QwenMultiHeadAttention",
    "QwenTransformerBlock",
    "RMSNorm",
    "Request",
    "RoPE",
    "SimpleMultiHeadAttention",
    "StepLayout",
    "TextStream",
    "TinyKvFullCache",
    "apply_min_p",
    "apply_top_k",
    "apply_top_p",
    "batch_generate",
    "build_model",
    "can_fuse",
    "causal_mask",
    "chunk_spans",
    "chunked_attention_mask",
    "dequantize_weights",
    "flash_attention",
    "flash_attention_metal",
    "fused_layer",
    "linear",
    "make_sampler",
    "paged_attention_metal",
    "quantized_linear",
    "quantized_matmul",
    "quantized_matmul_metal",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "select_optimal_chunk_size",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "softmax",
    "stream_generate",
]
