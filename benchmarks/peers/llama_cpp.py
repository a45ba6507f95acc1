"""llama.cpp, through the low-level functions of llama-cpp-python."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.peers.gguf_file import find_or_make
from tiny_llm_lab.measure.bench.peer import WARM_UP_TOKENS, PeerTimes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.types import ModelConfig, UserError

_BYTES_PER_WEIGHT: Final = {"Q4_0": 18 / 32, "Q8_0": 34 / 32, "BF16": 2.0}
_KV_BYTES: Final = 2  # llama.cpp keeps keys and values in float16 unless told not to

# One token of a batch: token, position, sequence, whether its logits are wanted.
Item = tuple[int, int, int, bool]


class Engine:
    """One loaded model with room for all requests of `spec`."""

    def __init__(self, spec: Spec, config: ModelConfig) -> None:
        import llama_cpp

        self.api: Any = llama_cpp
        quantization, *options = spec.variant.split()
        self._silence: Any = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        path = str(find_or_make(config, quantization))
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self._model:
            raise UserError(f"llama.cpp cannot load a {config.model_type} of this shape: choose another")
        # Rounded up as llama.cpp does itself, which would complain on the way.
        cells, batch = -(-spec.longest // 256) * 256, len(spec.requests)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = cells * batch
        settings.n_batch = max(spec.longest, batch)  # n_ubatch stays at llama.cpp's own 512
        settings.n_seq_max = batch
        settings.n_threads = settings.n_threads_batch = spec.threads
        settings.flash_attn_type = int("fa" in options)
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise UserError(f"llama.cpp has no context for {batch} sequences of {cells} tokens: choose fewer")

    def run(self, items: Sequence[Item]) -> float:
        """Compute a batch; returns seconds."""
        batch = self.api.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for place, (token, position, sequence, wants_logits) in enumerate(items):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wants_logits
        start_s = time.perf_counter()
        failed = self.api.llama_decode(self._context, batch)
        self.api.llama_synchronize(self._context)
        duration_s = time.perf_counter() - start_s
        self.api.llama_batch_free(batch)
        if failed:
            raise UserError(f"llama.cpp returns {failed} for a batch of {len(items)} tokens")
        return duration_s

    def clear(self) -> None:
        """Forget all sequences."""
        self.api.llama_memory_clear(self.api.llama_get_memory(self._context), True)


def measure(spec: Spec, config: ModelConfig) -> PeerTimes:
    """Every prompt by itself, then all of them a token at a time."""
    draw = np.random.default_rng(spec.seed)
    request, sequences = spec.requests[0], range(len(spec.requests))
    length = request.prompt_len

    def token() -> int:
        return int(draw.integers(0, config.vocab_size))

    def prompt(sequence: int, length: int) -> list[Item]:
        return [(token(), place, sequence, place == length - 1) for place in range(length)]

    engine = Engine(spec, config)
    for sequence in sequences:
        engine.run(prompt(sequence, 1 if sequence else min(length, WARM_UP_TOKENS)))
    engine.clear()
    prefill_s = [engine.run(prompt(sequence, length)) for sequence in sequences]
    steps_s = [
        engine.run([(token(), place, sequence, True) for sequence in sequences])
        for place in range(length, length + request.max_tokens - 1)
    ]
    weight_bytes = _BYTES_PER_WEIGHT[spec.variant.split()[0]]
    return PeerTimes(prefill_s, steps_s, weight_bytes, _KV_BYTES, str(engine.api.__version__))
