"""Prompt tokens that a hybrid computes when prompts repeat.

Counts, not times: they are the same on every machine. The model is a small random one.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

from benchmarks.measurements.show import show
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench.report import Column, Row, Section
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.types import EngineOptions, SamplingParams, SchedulerConfig

MODEL: Final = "random:qwen3.5-shrunk,positions=32768,layers=2,interval=2,heads=1,kv_heads=1"
BLOCK, EVERY, ANSWER = 16, 1536, 40
_COLUMNS: Final = tuple(Column(key, key, "d") for key in ("prompt", "computed", "cached"))


def main() -> None:
    about = "Prompt tokens that a hybrid computes, by request"
    show("hybrid-prefixes", [Section("hybrid-prefixes", about, _COLUMNS, list(_rows()))])


def _rows() -> Iterator[Row]:
    served, chat = _Served(), _text(0, 300)
    for turn in range(1, 11):
        chat = [*chat, *_text(turn, 60)]
        chat += yield from served.ask(f"chat of ten turns, turn {turn}", chat)
    for length in (100, 480, 552, 979):
        served = _Served()
        for i in range(1, 5):
            prompt = [*_text(100 + length, length), *_text(1000 + length + i, 50)]
            yield from served.ask(f"system prompt of {length}, request {i}", prompt)
        waves = {f"w{i}": [*_text(200 + length, length), *_text(2000 + length + i, 50)] for i in range(4)}
        yield from served.ask_together(f"system prompt of {length}, four at once", waves)
    served, long = _Served(), _text(7, 20_000)
    for i in range(1, 3):
        yield from served.ask(f"20,000 tokens, request {i}", long)
    yield from served.ask("20,000 tokens, edited at 12,000", [*long[:12_000], *_text(8, 10), *long[12_010:]])


class _Served:
    """One engine, and its answers."""

    def __init__(self) -> None:
        checkpoint = load_checkpoint(MODEL)
        options = EngineOptions(num_blocks=4096, block_size=BLOCK, num_states=128, snapshot_every=EVERY)
        config = SchedulerConfig(max_model_len=32_768)
        model: Any = load_solution("ref").build_model(checkpoint)
        self.engine = load_serving("ref").Engine(model, checkpoint.tokenizer, config, options)

    def ask(self, name: str, prompt: list[int]) -> Generator[Row, None, list[int]]:
        """The row of one request; returns its answer."""
        return (yield from self.ask_together(name, {"r": prompt}))

    def ask_together(self, name: str, prompts: Mapping[str, list[int]]) -> Generator[Row, None, list[int]]:
        """One row for all of them; returns all answers, one after another."""
        for request_id, prompt in prompts.items():
            self.engine.add(request_id, prompt, SamplingParams(max_tokens=ANSWER, ignore_eos=True))
        answers: list[int] = []
        cached: dict[str, int] = {}
        while self.engine.has_requests:
            for output in self.engine.step():
                answers += output.token_ids
                cached[output.request_id] = output.num_cached_tokens
        total, found = sum(map(len, prompts.values())), sum(cached.values())
        yield Row(name, {"prompt": [total], "computed": [total - found], "cached": [found]})
        return answers


def _text(seed: int, length: int) -> list[int]:
    return [(seed * 7919 + i * i * 31 + i) % 300 for i in range(length)]


if __name__ == "__main__":
    main()
