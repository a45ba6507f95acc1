"""Records book/src/live/trace.js: a long prompt beside three streams, without and with chunked prefill.

    python tests/peers/record_live_trace.py

Each way is run a few times on the default model; the quietest run of each is kept.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.async_engine.model import ModelSettings
from tiny_llm_lab.server.served_model import ServedModel, start_model
from tiny_llm_lab.types import SamplingParams

TARGET: Final = Path(__file__).parents[2] / "book" / "src" / "live" / "trace.js"
BUDGET: Final = 256
NUM_PROMPT_TOKENS: Final = 3000
NUM_RUNS: Final = 5
AROUND: Final = 30  # steps before the prompt and after its answer


async def one_run(served: ServedModel, seed: int) -> list[dict[str, Any]]:
    """The events of three streams and a long prompt that no run before had."""
    recorder, engine = served.live.recorder, served.engine
    _, position = recorder.since(0)
    state, _ = recorder.snapshot()
    sampling = SamplingParams(ignore_eos=True, temperature=1.0)
    streams = [
        await engine.add([50 + i, seed, 7], replace(sampling, seed=i, max_tokens=600)) for i in range(3)
    ]
    seen = 0
    async for output in streams[0]:
        seen += len(output.token_ids)
        if seen >= AROUND:
            break
    prompt = [(i * 7 + seed * 131) % 900 for i in range(NUM_PROMPT_TOKENS)]
    async for _ in engine.generate(prompt, replace(sampling, max_tokens=4)):
        pass
    seen = 0
    async for output in streams[0]:
        seen += len(output.token_ids)
        if seen >= AROUND:
            break
    events, _ = recorder.since(position)
    for stream in streams:
        engine.abort(stream)
    while await engine.run(lambda running: running.has_requests):
        await asyncio.sleep(0.01)
    return [*state, *events]


def excerpt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps around the prompt's, with requests numbered and times counted from the first."""
    long = [i for i, each in enumerate(events) if any(not d and n >= 32 for _, n, d in each.get("parts", ()))]
    kept = (
        events[: max(0, long[0] - 2 * AROUND)],
        events[max(0, long[0] - 2 * AROUND) : long[-1] + 2 * AROUND],
    )
    found = [each for each in kept[0] if each["type"] in ("config", "added")] + kept[1]
    zero = next(each["start_ms"] for each in found if each["type"] == "step")
    lowest = min(each["request"] for each in found if each["type"] == "added") - 1
    for each in found:
        for name in ("start_ms", "end_ms"):
            if name in each:
                each[name] = round(each[name] - zero, 2)
        if "request" in each:
            each["request"] -= lowest
        for name in ("parts", "blocks", "tokens"):
            if name in each:
                each[name] = [[row[0] - lowest, *row[1:]] for row in each[name]]
    return found


async def record() -> None:
    served = await start_model(ModelSettings())
    hello = {
        "type": "hello", "model": "default", "max_model_len": served.config.max_model_len,
        "num_blocks": served.num_blocks, "block_size": served.block_size,
    }  # fmt: skip
    trace, seed = {}, 0
    for name, change in (("off", (False, None)), ("on", (True, BUDGET))):
        await served.live.controls.apply(served.engine, *change)
        runs = []
        for _ in range(NUM_RUNS):
            seed += 1
            runs.append([hello, *excerpt(await one_run(served, seed))])
        trace[name] = min(runs, key=lambda events: max(each.get("end_ms", 0) for each in events))
    await served.engine.stop()
    TARGET.write_text(f"globalThis.tinyLlmTrace = {json.dumps(trace, separators=(',', ':'))};\n")
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    asyncio.run(record())
