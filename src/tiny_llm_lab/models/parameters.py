"""Which parameters a Qwen model has: names as Hugging Face spells them, and shapes."""

from collections.abc import Iterator

from tiny_llm_lab.types import ModelConfig

EMBEDDING = "model.embed_tokens"

ParameterShape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape (before any packing) of every parameter, in the model's order."""
    yield f"{EMBEDDING}.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer_shapes(config):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, hidden)
        if config.qkv_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield "mlp.gate_proj.weight", (mlp, hidden)
    yield "mlp.up_proj.weight", (mlp, hidden)
    yield "mlp.down_proj.weight", (hidden, mlp)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
