"""ik_llama.cpp, in its own python, through the low-level functions of ik-llama-cpp-python."""

from functools import partial
from typing import Any

from benchmarks.peers import turns
from benchmarks.peers.llama_batches import Batches, with_room


def measure(
    path: str, lengths: list[int], streams: int, threads: int, options: list[str], **drawn: int
) -> dict[str, Any]:
    import ik_llama_cpp
    import ik_llama_cpp._ctypes_api as api

    if "fa" in options and streams > 1:
        raise SystemExit("ik_llama.cpp ends with GGML_ASSERT(S > 0) for several sequences with fa")
    api.llama_backend_init()
    settings = api.llama_model_default_params()
    settings.n_gpu_layers, settings.use_mmap, settings.repack_tensors = 0, False, True
    model = api.llama_model_load_from_file(path.encode(), settings)
    if not model:
        raise SystemExit("ik_llama.cpp cannot load a model of this shape: choose another")
    settings = with_room(api.llama_context_default_params(), threads, streams, sum(lengths[1:]))
    settings.flash_attn = "fa" in options
    context = api.llama_init_from_model(model, settings)
    engine = Batches(api, context, partial(api.llama_kv_cache_clear, context))
    return turns.measure(engine, lengths, streams, **drawn) | {"version": ik_llama_cpp.__version__}
