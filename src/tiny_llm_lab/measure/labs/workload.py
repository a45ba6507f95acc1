"""The requests of the labs, made for the pace of the machine and drawn from a seed."""

import random
from collections.abc import Sequence
from typing import Final

from tiny_llm_lab.measure.bench.run import decoding
from tiny_llm_lab.measure.labs.setup import LabSetup, Pace
from tiny_llm_lab.measure.load.record import LoadRun
from tiny_llm_lab.measure.traffic.lengths import LengthKind, draw_requests
from tiny_llm_lab.measure.traffic.request import LoadRequest, gamma_gaps

_STREAM_PROMPT: Final = 16
_LONG_MAX_TOKENS: Final = 4
_ROUND: Final = 10_000  # seeds of a round
LOAD: Final = 0.5  # of what the machine could compute, for traffic
_BETWEEN: Final = 0.12  # of the streams' tokens, that come before each long prompt


def contention(setup: LabSetup, pace: Pace, num_long: int, number: int) -> list[LoadRequest]:
    """Streams that all decode, and long prompts that come while they do."""
    sizes, seed = setup.sizes, _ROUND * (number + 1)
    decode_s = sizes.stream_tokens * pace.decode_s
    requests = [
        setup.request(_STREAM_PROMPT, sizes.stream_tokens, "stream", 0.0, seed + each)
        for each in range(sizes.streams)
    ]
    for each in range(num_long):
        at_s = 2 * pace.start_s + each * pace.prefill_s + _BETWEEN * (each + 1) * decode_s
        seed_of_long = seed + sizes.streams + each
        requests.append(setup.request(setup.long_tokens, _LONG_MAX_TOKENS, "long", at_s, seed_of_long))
    return requests


def overlap_problem(runs: Sequence[LoadRun], share: float = 0.8) -> str | None:
    """Why long prompts did not meet decodes: `share` of them must, each with `share` of the streams."""
    streams = [[each.token_s for each in run.of_kind("stream")] for run in runs]
    meetings = [
        len(decoding(each, long.send_s, long.token_s[0])) / len(each)
        for run, each in zip(runs, streams, strict=True)
        for long in run.of_kind("long")
    ]
    num_met = sum(meeting >= share for meeting in meetings)
    if num_met >= share * len(meetings):
        return None
    return (
        f"only {num_met} of {len(meetings)} long prompts were served while {share:.0%} of the streams were "
        "decoding: run it again on a quieter machine"
    )


def starved_problem(runs: Sequence[LoadRun]) -> str | None:
    """Why the client has seen no gaps: it read all tokens of a stream at once, so it got no time itself."""
    streams = [[each.timing for each in run.of_kind("stream")] for run in runs]
    num = sum(any(len(each.token_s) > 1 == len(each.distinct_s) for each in run) for run in streams)
    message = f"in {num} of {len(runs)} rounds all tokens of a stream were read at once"
    return f"{message}: run it again on a quieter machine" if num else None


def met_share(run: LoadRun, kind: str = "") -> float:
    """The share of the prompts, or of those of a kind, during whose prefill another request was decoding."""
    tokens = [each.token_s for each in run.completed]
    own = [idx for idx, each in enumerate(run.completed) if each.request.kind == kind or not kind]
    met = [
        any(
            other != idx and len(tokens[other]) > 1
            for other in decoding(tokens, tokens[idx][0], run.completed[idx].send_s)
        )
        for idx in own
    ]
    return sum(met) / max(1, len(met))


def meeting_problem(runs: Sequence[LoadRun], kind: str = "", share: float = 0.5) -> str | None:
    """Why a run of traffic says nothing about chunks: too few prefills met decodes."""
    shares = [met_share(run, kind) for run in runs]
    if min(shares) >= share:
        return None
    return (
        f"in a run only {min(shares):.0%} of the {kind + ' ' if kind else ''}prompts were computed while "
        f"another request was decoding, and {share:.0%} should be: run it again on a quieter machine"
    )


def traffic(setup: LabSetup, kinds: Sequence[LengthKind], rate: float, number: int) -> list[LoadRequest]:
    """Poisson arrivals at `rate` a second with lengths of `kinds`.

    Every round has the same lengths and arrivals, and other tokens.
    """
    count, seed = setup.sizes.num_requests, _ROUND * (number + 1)
    drawn = draw_requests(count, rate, 1.0, kinds, setup.seed, setup.max_model_len - 1)
    return [
        setup.request(each.prompt_len, max(2, each.max_tokens), "short", each.arrival_s, seed + place)
        for place, each in enumerate(drawn)
    ]


def rate_for(setup: LabSetup, pace: Pace, kinds: Sequence[LengthKind], load: float = LOAD) -> float:
    """Requests a second that keep the machine busy for `load` of the time."""
    token_s, output_token_s = pace.prefill_s / setup.long_tokens, pace.decode_s / setup.sizes.streams
    each_s = (kind.prompt_median * token_s + kind.output_median * output_token_s for kind in kinds)
    return load / sum(kind.share * work_s for kind, work_s in zip(kinds, each_s, strict=True))


def mixed(setup: LabSetup, rate: float, number: int) -> list[LoadRequest]:
    """A fifth long prompts with short answers, four fifths short prompts with long ones, shuffled."""
    count, longs = setup.sizes.num_requests, setup.sizes.num_requests // 5
    kinds = ["long"] * longs + ["short"] * (count - longs)
    draw = random.Random(setup.seed)
    draw.shuffle(kinds)
    gaps = gamma_gaps(draw, 1.0)
    shapes = mixed_shapes(setup)
    requests, now = [], 0.0
    for idx, kind in enumerate(kinds):
        requests.append(setup.request(*shapes[kind], kind, now, _ROUND * (number + 1) + idx))
        now += next(gaps) / rate
    return requests


def mixed_shapes(setup: LabSetup) -> dict[str, tuple[int, int]]:
    """Tokens of prompt and answer by kind; smaller where a long request would not fit the model."""
    return {"long": (min(3000, setup.max_model_len - 64), 64), "short": (50, 128)}


def mixed_kinds(setup: LabSetup) -> tuple[LengthKind, ...]:
    """The same as `mixed`, as lengths that traffic and rates are made from."""
    shapes, shares = mixed_shapes(setup), {"long": 0.2, "short": 0.8}
    return tuple(LengthKind(shares[kind], shape[0], 0.0, shape[1], 0.0) for kind, shape in shapes.items())
