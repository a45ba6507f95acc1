"""`prefix`: requests that share a system prompt, with and without the prefix cache."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from tiny_llm_lab.measure.bench.report import Column, Metrics, Row
from tiny_llm_lab.measure.labs.effect import effect_of, within
from tiny_llm_lab.measure.labs.lab import Lab, LabSetup, Measured, Pace
from tiny_llm_lab.measure.labs.result import Finding, judged
from tiny_llm_lab.measure.labs.server import Variant
from tiny_llm_lab.measure.load.client import LoadRun
from tiny_llm_lab.measure.traffic.request import LoadRequest
from tiny_llm_lab.serving.options.engine_settings import EngineSettings

_SYSTEM, _USER, _NUM_REQUESTS = 1000, 500, 6
_COLUMNS: Final = (
    Column("cached_tokens", "cached tokens", ".0f"),
    Column("hit_rate", "of the prompt", ".1%"),
    Column("ttft_first_s", "TTFT first ms", ".1f", 1e3, has_spread=True),
    Column("ttft_next_s", "TTFT next ms", ".1f", 1e3, has_spread=True),
    Column("saved", "TTFT saved", ".0%", has_spread=True),
)


def lengths(setup: LabSetup) -> tuple[int, int]:
    """Tokens of system prompt and user's turn, smaller where they would not fit the model."""
    return min(_SYSTEM, setup.max_model_len // 2), min(_USER, setup.max_model_len // 4)


def requests_of(setup: LabSetup, pace: Pace, number: int) -> list[LoadRequest]:
    """A system prompt of this round, each time with another user's turn."""
    system, user = lengths(setup)
    seed = 100 * (number + 1)
    requests = []
    for each in range(_NUM_REQUESTS):
        prompt = joined(setup.prompt(system, seed), setup.prompt(user, seed + 1 + each))
        requests.append(LoadRequest(prompt, system + user, 4, "shared"))
    return requests


def joined(system: str | tuple[int, ...], user: str | tuple[int, ...]) -> str | tuple[int, ...]:
    """One prompt of two, both text or both token ids."""
    if isinstance(system, tuple) and isinstance(user, tuple):
        return system + user
    return f"{system} {user}"


def metrics(run: LoadRun) -> Metrics:
    """TTFT of the first request and of the others, and the tokens that the server says it had cached."""
    first, *others = run.records
    cached = [each.usage.cached_tokens for each in others if each.usage is not None]
    known = [value for value in cached if value is not None]
    first_s, next_s = (first.timing.ttft_s or 0.0), median(each.timing.ttft_s or 0.0 for each in others)
    tokens = median(known) if known else None
    return {
        "cached_tokens": tokens,
        "hit_rate": None if tokens is None else tokens / others[0].num_prompt_tokens,
        "ttft_first_s": first_s,
        "ttft_next_s": next_s,
        "saved": 1 - next_s / first_s if first_s else None,
    }


def finding(rows: Sequence[Row], system: int, block_size: int | None) -> Finding:
    """Hits in tokens and blocks, and the time that they save."""
    on = rows[0]
    if None in on.samples["cached_tokens"]:
        sentences = ["The server does not report usage.prompt_tokens_details.cached_tokens."]
        return Finding(
            [*sentences, f"The later requests save {on.median('saved'):.0%} of the first one's TTFT."]
        )
    differences = [
        None if a is None or b is None else a - b
        for a, b in zip(on.samples["saved"], on.samples["hit_rate"], strict=True)
    ]
    tokens, rate, saved = (on.median(key) for key in ("cached_tokens", "hit_rate", "saved"))
    sentences = [
        f"{tokens:.0f} tokens ({rate:.1%}) of every later prompt come from the cache, "
        f"which saves {saved:.0%} of TTFT."
    ]
    claims = [
        judged("The hit rate is 2/3 = 66.7 %", abs(rate - 2 / 3) < 5e-4, f"{rate:.1%}"),
        judged(
            "A hit rate is the share of the prefill's work that is free",
            None if len(rows) < 2 else within(differences, -0.05, 0.05),
            f"{rate:.1%} of the tokens, {saved:.1%} of the time",
        ),
    ]
    if block_size is not None:
        full = system // block_size
        is_in_blocks = tokens == full * block_size
        claims.append(
            judged(
                "Hits are full blocks: floor(shared / block) x block tokens",
                is_in_blocks,
                f"{tokens:.0f} tokens; {system} hold {full} full blocks of {block_size}, "
                f"{full * block_size} tokens",
            )
        )
    if len(rows) > 1:
        sentences.append(
            f"{effect_of('TTFT of the later requests with the cache', on, rows[1], 'ttft_next_s')}."
        )
    return Finding(sentences, claims)


def _finding(measured: Measured) -> Finding:
    block_size = EngineSettings.block_size if measured.setup.servers.is_own else None
    return finding(measured.rows, lengths(measured.setup)[0], block_size)


LAB: Final = Lab(
    name="prefix",
    may_hit=True,
    question="What does a shared system prompt save?",
    columns=_COLUMNS,
    title="{count} requests one after another, with {shared} shared tokens and {own} of their own",
    facts=lambda setup, pace: dict(zip(("shared", "own"), lengths(setup), strict=True), count=_NUM_REQUESTS),
    variants=lambda setup: [Variant("cache on"), Variant("cache off", ("--no-enable-prefix-caching",))],
    has_pace=False,
    options=lambda options: replace(options, max_concurrency=1),
    requests=requests_of,
    metrics=metrics,
    finding=_finding,
    panels=(
        ("TTFT of the first request", "ttft_first_s", 1e3, "ms"),
        ("TTFT of the next", "ttft_next_s", 1e3, "ms"),
    ),
)
