"""llama.cpp, through the low-level functions of llama-cpp-python."""

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tiny_llm_lab.bench.child import reply
from tiny_llm_lab.bench.peers import WARM_UP_TOKENS, PeerSpec, num_kv_numbers, num_read_weights
from tiny_llm_lab.bench.peers.gguf_file import find_or_make
from tiny_llm_lab.bench.peers.timed import answer
from tiny_llm_lab.types import UserError

_BYTES_PER_WEIGHT: Final = {"Q4_0": 18 / 32, "BF16": 2.0}
_KV_BYTES: Final = 2  # llama.cpp keeps keys and values in float16 unless told not to

# One token of a batch: token, position, sequence, whether its logits are wanted.
Item = tuple[int, int, int, bool]


class Engine:
    """One loaded model with room for `batch` sequences of `cells` tokens."""

    def __init__(self, spec: PeerSpec, cells: int) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        quantization, *options = spec.variant.split()
        self._silence: Any = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        path = str(find_or_make(spec.config, quantization))
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self._model:
            raise UserError(f"llama.cpp cannot load a {spec.config.model_type} model of this shape")
        self._context = self._make_context(spec, cells, flash_attention="fa" in options)
        self._memory = llama_cpp.llama_get_memory(self._context)

    def _make_context(self, spec: PeerSpec, cells: int, flash_attention: bool) -> Any:
        settings = self._api.llama_context_default_params()
        settings.n_ctx = cells * spec.batch
        settings.n_batch = max(spec.prompt_len, spec.batch)  # n_ubatch stays at llama.cpp's own 512
        settings.n_seq_max = spec.batch
        settings.n_threads = settings.n_threads_batch = spec.threads
        settings.flash_attn_type = int(flash_attention)
        context = self._api.llama_init_from_model(self._model, settings)
        if not context:
            raise UserError(f"llama.cpp cannot make a context for {spec.batch} sequences of {cells} tokens")
        return context

    def run(self, items: Sequence[Item]) -> float:
        """Compute a batch; returns seconds."""
        batch = self._api.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for place, (token, position, sequence, wants_logits) in enumerate(items):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wants_logits
        start_s = time.perf_counter()
        failed = self._api.llama_decode(self._context, batch)
        self._api.llama_synchronize(self._context)
        duration_s = time.perf_counter() - start_s
        self._api.llama_batch_free(batch)
        if failed:
            raise UserError(f"llama.cpp answers {failed} to a batch of {len(items)} tokens")
        return duration_s

    def clear(self) -> None:
        """Forget all sequences."""
        self._api.llama_memory_clear(self._memory, True)

    @property
    def version(self) -> str:
        """Of llama-cpp-python."""
        return str(self._api.__version__)


def measure(spec: PeerSpec) -> dict[str, Any]:
    """Every prompt by itself, then all of them a token at a time."""
    draw = np.random.default_rng(spec.seed)

    def token() -> int:
        return int(draw.integers(0, spec.config.vocab_size))

    def prompt(sequence: int, length: int) -> list[Item]:
        return [(token(), place, sequence, place == length - 1) for place in range(length)]

    def step(length: int) -> list[Item]:
        return [(token(), length, sequence, True) for sequence in range(spec.batch)]

    # Rounded up as llama.cpp does itself, which would complain on the way.
    cells = -(-(spec.prompt_len + spec.output_len) // 256) * 256
    engine = Engine(spec, cells)
    warm_up = min(spec.prompt_len, WARM_UP_TOKENS)
    for sequence in range(spec.batch):
        engine.run(prompt(sequence, warm_up if sequence == 0 else 1))
    engine.clear()
    prefill_s = [engine.run(prompt(sequence, spec.prompt_len)) for sequence in range(spec.batch)]
    steps_s = [engine.run(step(spec.prompt_len + place)) for place in range(spec.output_len - 1)]
    weights_bytes = int(num_read_weights(spec.config) * _BYTES_PER_WEIGHT[spec.variant.split()[0]])
    kv_bytes = num_kv_numbers(spec.config) * _KV_BYTES
    facts = {"llama-cpp-python": engine.version}
    return answer(spec, spec.prompt_len, prefill_s, steps_s, weights_bytes, kv_bytes, facts)


if __name__ == "__main__":
    sys.exit(reply(lambda text: measure(PeerSpec.from_json(text))))
