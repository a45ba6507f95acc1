"""What a layer may remember of the tokens before."""

from tiny_llm_lab.types import KvCache

from .paged_attention import PagedLayer

Memory = KvCache | PagedLayer
