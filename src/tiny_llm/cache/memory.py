"""What a layer may use to remember earlier tokens."""

from tiny_llm_lab.types import KvCache

from .paged_attention import PagedLayer

Memory = KvCache | PagedLayer
