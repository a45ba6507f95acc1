"""PyTorch on the CPU, with the model of transformers."""

import time
from typing import Any, Final

from tiny_llm_lab.measure.bench.peer import WARM_UP_TOKENS, PeerTimes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.types import ModelConfig

_FIELDS: Final = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "head_dim max_position_embeddings rms_norm_eps rope_theta tie_word_embeddings"
).split()


_EXPERTS: Final = (
    "num_experts num_experts_per_tok moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers"
    " shared_expert_intermediate_size"
).split()


def text_model(config: ModelConfig) -> str:
    """What transformers calls the model type without its pictures."""
    return config.model_type + "_text" * config.model_type.startswith("qwen3_5")


def model_fields(config: ModelConfig) -> dict[str, object]:
    """The sizes, as transformers calls them: for one that is left out it takes a default of its own."""
    names = [*_FIELDS, *(_EXPERTS if config.num_experts else ())]
    values = {name: getattr(config, name) for name in names} | _hybrid_fields(config)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _hybrid_fields(config: ModelConfig) -> dict[str, object]:
    """What transformers calls the sizes of gated delta nets; nothing for a model without them."""
    if config.hybrid is None:
        return {}
    sizes = config.hybrid.delta_net
    return {
        "layer_types": config.hybrid.mixers,
        "linear_num_key_heads": sizes.num_key_heads,
        "linear_num_value_heads": sizes.num_value_heads,
        "linear_key_head_dim": sizes.key_head_dim,
        "linear_value_head_dim": sizes.value_head_dim,
        "linear_conv_kernel_dim": sizes.conv_kernel,
        "partial_rotary_factor": config.hybrid.rotary_dims / config.head_dim,
    }


def dtypes(bits: int) -> tuple[str, ...]:
    """Its weights are never packed, whatever the bits of the model."""
    return ("bfloat16", "float32")


def measure(spec: Spec, config: ModelConfig) -> PeerTimes:
    """All prompts in one forward pass, then all of them a token at a time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.seed)
    dtype = getattr(torch, spec.variant)
    settings = AutoConfig.for_model(text_model(config), **model_fields(config))
    model = AutoModelForCausalLM.from_config(settings).to(dtype).eval()
    request, batch = spec.requests[0], len(spec.requests)

    def run(prompt_len: int, num_steps: int) -> list[float]:
        ids, cache, seconds = torch.randint(0, config.vocab_size, (batch, prompt_len)), None, []
        for _ in range(1 + num_steps):
            start_s = time.perf_counter()
            out: Any = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            seconds.append(time.perf_counter() - start_s)
        return seconds

    with torch.inference_mode():
        run(min(request.prompt_len, WARM_UP_TOKENS), 2)
        prefill_s, *steps_s = run(request.prompt_len, request.max_tokens - 1)
    return PeerTimes([prefill_s], steps_s, dtype.itemsize, dtype.itemsize, torch.__version__)
