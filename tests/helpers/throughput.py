"""What one measurement of `bench` asks and returns, in round numbers."""

from typing import Any

from tiny_llm_lab.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.native.limits import Limits

SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 1, at_once(1, 16, 16))
LIMITS = Limits(2, 20.0, 100.0, None, 200.0)
SAMPLE: dict[str, Any] = {
    "prefill_tok_s": 100.0,
    "decode_tok_s": 10.0,
    "decode_step_s": 0.1,
    "context": 50.0,
    "weights_bytes": 900_000_000,
    "kv_bytes_per_token": 2_000_000,
    "facts": {"device": "cpu", "dtype": "float32"},
}
