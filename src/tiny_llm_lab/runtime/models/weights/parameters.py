"""Which parameters a Qwen model has: names as Hugging Face spells them (but see EXPERTS), and shapes."""

from collections.abc import Iterator

from tiny_llm_lab.types import ModelConfig

EMBEDDING = "model.embed_tokens"
NORM = "model.norm.weight"
# mlx-lm's name for the matrices of all experts, one above the other; Hugging Face numbers them.
EXPERTS = "mlp.switch_mlp"

ParameterShape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape (before any packing) of every parameter, in the model's order."""
    yield f"{EMBEDDING}.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        for name, shape in (*_attention_shapes(config), *_feed_forward_shapes(config, layer)):
            yield f"model.layers.{layer}.{name}", shape
    yield NORM, (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)


def _attention_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    hidden = config.hidden_size
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


def _feed_forward_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, ParameterShape]]:
    hidden, inner, module = config.hidden_size, config.intermediate_size, "mlp"
    stack: ParameterShape = ()
    if config.has_experts(layer):
        yield "mlp.gate.weight", (config.num_experts, hidden)
        inner, module, stack = config.moe_intermediate_size, EXPERTS, (config.num_experts,)
    yield f"{module}.gate_proj.weight", (*stack, inner, hidden)
    yield f"{module}.up_proj.weight", (*stack, inner, hidden)
    yield f"{module}.down_proj.weight", (*stack, hidden, inner)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
