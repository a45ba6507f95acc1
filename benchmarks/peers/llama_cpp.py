"""llama.cpp, through the low-level functions of llama-cpp-python."""

import ctypes
from typing import Any, Final

from benchmarks.peers import turns
from benchmarks.peers.gguf_file import find_or_make
from benchmarks.peers.llama_batches import Batches, with_room
from tiny_llm_lab.measure.bench.peer import WARM_UP_TOKENS, PeerTimes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.types import ModelConfig, UserError

_BYTES_PER_WEIGHT: Final = {"Q4_0": 18 / 32, "Q8_0": 34 / 32, "BF16": 2.0}
_KV_BYTES: Final = 2  # llama.cpp keeps keys and values in float16 unless told not to


def measure(spec: Spec, config: ModelConfig) -> PeerTimes:
    """Every prompt by itself, then all of them a token at a time."""
    import llama_cpp

    api: Any = llama_cpp
    quantization, *options = spec.variant.split()
    silence = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(silence, ctypes.c_void_p(0))
    api.llama_backend_init()
    settings = api.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = api.llama_model_load_from_file(str(find_or_make(config, quantization)).encode(), settings)
    if not model:
        raise UserError(f"llama.cpp cannot load a {config.model_type} of this shape: choose another")
    request, streams = spec.requests[0], len(spec.requests)
    settings = with_room(api.llama_context_default_params(), spec.threads, streams, spec.longest)
    settings.flash_attn_type = int("fa" in options)
    context = api.llama_init_from_model(model, settings)
    if not context:
        raise UserError(
            f"llama.cpp has no context for {streams} sequences of {spec.longest} tokens: choose fewer"
        )
    engine = Batches(api, context, lambda: api.llama_memory_clear(api.llama_get_memory(context), True))
    lengths = [min(request.prompt_len, WARM_UP_TOKENS), request.prompt_len, request.max_tokens]
    times: Any = turns.measure(engine, lengths, streams, config.vocab_size, spec.seed)
    bytes_per_weight = _BYTES_PER_WEIGHT[quantization]
    return PeerTimes(times["prefill_s"], times["steps_s"], bytes_per_weight, _KV_BYTES, str(api.__version__))
