"""Which parameters a Qwen model has: names as Hugging Face spells them (but see EXPERTS), and shapes."""

from collections.abc import Iterator

from tiny_llm_lab.types import DeltaNetSizes, ModelConfig

EMBEDDING = "model.embed_tokens"
NORM = "model.norm.weight"
# mlx-lm's name for the matrices of all experts, one above the other; Hugging Face numbers them.
EXPERTS = "mlp.switch_mlp"
SHARED_EXPERT = "mlp.shared_expert"
DELTA_NET = "linear_attn"
DRAFTS = "mtp."

ParameterShape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape (before any packing) of every parameter, in the model's order."""
    yield f"{EMBEDDING}.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        for name, shape in (
            *_mixer_shapes(config, layer),
            *_feed_forward_shapes(config, config.has_experts(layer)),
        ):
            yield f"model.layers.{layer}.{name}", shape
    yield NORM, (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)


def draft_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Those of the layer (mtp) that drafts for a hybrid, which shares embedding and head with it."""
    hidden = config.hidden_size
    yield f"{DRAFTS}fc.weight", (hidden, 2 * hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"{DRAFTS}{name}.weight", (hidden,)
    for name, shape in (*_attention_shapes(config), *_feed_forward_shapes(config, config.num_experts > 0)):
        yield f"{DRAFTS}layers.0.{name}", shape


def _mixer_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, ParameterShape]]:
    hybrid = config.hybrid
    if hybrid is None or hybrid.mixers[layer] == "full_attention":
        return _attention_shapes(config)
    return _delta_net_shapes(hybrid.delta_net, config.hidden_size)


def _attention_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    hidden = config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    gates = queries if config.hybrid else 0  # of gated attention, next to each head's queries
    for name, rows in (("q_proj", queries + gates), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, hidden)
        if config.qkv_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _delta_net_shapes(sizes: DeltaNetSizes, hidden: int) -> Iterator[tuple[str, ParameterShape]]:
    rows = {"qkv": sizes.conv_dim, "z": sizes.value_dim, "b": sizes.num_value_heads}
    for name, outputs in (*rows.items(), ("a", sizes.num_value_heads)):
        yield f"{DELTA_NET}.in_proj_{name}.weight", (outputs, hidden)
    yield f"{DELTA_NET}.conv1d.weight", (sizes.conv_dim, sizes.conv_kernel)
    yield f"{DELTA_NET}.dt_bias", (sizes.num_value_heads,)
    yield f"{DELTA_NET}.A_log", (sizes.num_value_heads,)
    yield f"{DELTA_NET}.norm.weight", (sizes.value_head_dim,)
    yield f"{DELTA_NET}.out_proj.weight", (hidden, sizes.value_dim)


def _feed_forward_shapes(config: ModelConfig, has_experts: bool) -> Iterator[tuple[str, ParameterShape]]:
    hidden, inner, module = config.hidden_size, config.intermediate_size, "mlp"
    stack: ParameterShape = ()
    if has_experts:
        yield "mlp.gate.weight", (config.num_experts, hidden)
        inner, module, stack = config.moe_intermediate_size, EXPERTS, (config.num_experts,)
    yield f"{module}.gate_proj.weight", (*stack, inner, hidden)
    yield f"{module}.up_proj.weight", (*stack, inner, hidden)
    yield f"{module}.down_proj.weight", (*stack, hidden, inner)
    if config.hybrid and has_experts:
        shared = config.hybrid.shared_expert_intermediate_size
        yield f"{SHARED_EXPERT}.gate_proj.weight", (shared, hidden)
        yield f"{SHARED_EXPERT}.up_proj.weight", (shared, hidden)
        yield f"{SHARED_EXPERT}.down_proj.weight", (hidden, shared)
        yield f"{SHARED_EXPERT}_gate.weight", (1, hidden)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
