"""PyTorch on the CPU, with the model of transformers."""

import sys
import time
from typing import Any

from tiny_llm_lab.bench.child import reply
from tiny_llm_lab.bench.peers import WARM_UP_TOKENS, PeerSpec, num_kv_numbers, num_read_weights
from tiny_llm_lab.bench.peers.timed import answer
from tiny_llm_lab.types import ModelConfig


def measure(spec: PeerSpec) -> dict[str, Any]:
    """All prompts in one forward pass, then all of them a token at a time."""
    import torch

    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.seed)
    dtype = getattr(torch, spec.variant)
    model = _build(spec.config, dtype)
    with torch.inference_mode():
        _run(model, spec, min(spec.prompt_len, WARM_UP_TOKENS), 2)
        prefill_s, steps_s = _run(model, spec, spec.prompt_len, spec.output_len - 1)
    return answer(
        spec,
        spec.batch * spec.prompt_len,
        [prefill_s],
        steps_s,
        num_read_weights(spec.config) * dtype.itemsize,
        num_kv_numbers(spec.config) * dtype.itemsize,
        {"torch": torch.__version__},
    )


def _build(config: ModelConfig, dtype: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = AutoConfig.for_model(
        config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta,
        tie_word_embeddings=config.tie_word_embeddings,
    )
    return AutoModelForCausalLM.from_config(settings).to(dtype).eval()


def _run(model: Any, spec: PeerSpec, prompt_len: int, num_steps: int) -> tuple[float, list[float]]:
    import torch

    ids = torch.randint(0, spec.config.vocab_size, (spec.batch, prompt_len))
    start_s = time.perf_counter()
    out = model(ids, use_cache=True, logits_to_keep=1)
    token = out.logits[:, -1].argmax(-1, keepdim=True)
    prefill_s = time.perf_counter() - start_s
    steps_s = []
    for _ in range(num_steps):
        start_s = time.perf_counter()
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        steps_s.append(time.perf_counter() - start_s)
    return prefill_s, steps_s


if __name__ == "__main__":
    sys.exit(reply(lambda text: measure(PeerSpec.from_json(text))))
