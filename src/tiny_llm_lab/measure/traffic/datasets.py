"""The requests of a run, by the names and flags of `vllm bench serve`; `mixed` is ours."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import cycle, islice
from typing import Final, Literal

from tiny_llm_lab.measure.traffic.prompts import Texts
from tiny_llm_lab.measure.traffic.request import LEAST_SHAREGPT, LIKE_SHAREGPT, LoadRequest, draw_lengths
from tiny_llm_lab.runtime.console.field_flags import flag
from tiny_llm_lab.runtime.console.input_file import read_text
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.serving.options.prompts_file import read_prompts
from tiny_llm_lab.types import SamplingParams, UserError

DatasetName = Literal["random", "sharegpt", "custom", "prefix_repetition", "mixed"]
_MAX_TOKENS: Final = 10**8  # of all prompts together: they are kept in memory
_MAX_SHAREGPT: Final = (1024, 2048)  # tokens of a prompt, and with its answer: vLLM leaves out longer ones


@dataclass(frozen=True)
class DatasetSettings:
    """What the requests are; lengths are tokens."""

    dataset_name: DatasetName = flag("random", "source of the prompts; mixed sends long and short ones")
    dataset_path: str | None = flag(
        None,
        "file for sharegpt (JSON; without one, random words of like lengths) or custom (lines, .json or "
        ".jsonl, with prompt, max_tokens and arrival_s) (default: none)",
        metavar="FILE",
    )
    num_prompts: int = flag(1000, "requests; a file without arrival_s repeats; mixed has its own numbers")
    random_input_len: int = flag(1024, "random: tokens in a prompt, after its prefix")
    random_output_len: int = flag(128, "random: tokens in an answer")
    random_range_ratio: float = flag(0.0, "random: lengths vary by up to this share, below 1", metavar="X")
    random_prefix_len: int = flag(0, "random: tokens in a prefix shared by all prompts")
    sharegpt_output_len: int | None = flag(None, "sharegpt: tokens in an answer (default: as in the file)")
    custom_output_len: int = flag(256, "custom: tokens in an answer if its entry has no max_tokens")
    prefix_repetition_prefix_len: int = flag(256, "prefix_repetition: tokens in a prefix")
    prefix_repetition_suffix_len: int = flag(256, "prefix_repetition: tokens after the prefix")
    prefix_repetition_num_prefixes: int = flag(10, "prefix_repetition: number of different prefixes")
    prefix_repetition_output_len: int = flag(128, "prefix_repetition: tokens in an answer")
    mixed_long_prompts: int = flag(20, "mixed: number of long requests")
    mixed_long_len: int = flag(3000, "mixed: tokens in a long prompt")
    mixed_long_output_len: int = flag(64, "mixed: tokens in its answer")
    mixed_short_prompts: int = flag(80, "mixed: number of short requests")
    mixed_short_len: int = flag(50, "mixed: tokens in a short prompt")
    mixed_short_output_len: int = flag(128, "mixed: tokens in its answer")
    seed: int = flag(0, "seed of prompts, lengths and arrivals")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in ("random_prefix_len", "random_range_ratio", "seed") else 1
            if isinstance(value, int | float) and not value >= least:
                raise UserError(f"--{each.name.replace('_', '-')} must be {least} or more, not {value}")
        if not self.random_range_ratio < 1:
            raise UserError(f"--random-range-ratio must be below 1, not {self.random_range_ratio:g}")
        if self.dataset_path is None and self.dataset_name == "custom":
            raise UserError(f"--dataset-name {self.dataset_name} needs --dataset-path FILE")
        longest = {
            "random": self.num_prompts * (self.random_prefix_len + 2 * self.random_input_len),
            "prefix_repetition": self.num_prompts
            * (self.prefix_repetition_prefix_len + self.prefix_repetition_suffix_len),
            "sharegpt": self.num_prompts * (_MAX_SHAREGPT[0] if self.dataset_path is None else 1),
            "mixed": self.mixed_long_prompts * self.mixed_long_len
            + self.mixed_short_prompts * self.mixed_short_len,
        }.get(self.dataset_name, self.num_prompts)
        if longest > _MAX_TOKENS:
            raise UserError(
                f"the prompts would have {longest} tokens, more than {_MAX_TOKENS}: ask for fewer"
            )


def make_requests(settings: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    """The requests of a run, in order; their arrivals are 0 unless a custom file tells them."""
    return _DATASETS[settings.dataset_name](settings, texts)


def _random(s: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    prefix = texts.exact(s.random_prefix_len) if s.random_prefix_len else ""
    requests = []
    for _ in range(s.num_prompts):
        num_prompt = s.random_prefix_len + _near(texts.rng, s.random_input_len, s.random_range_ratio)
        num_output = _near(texts.rng, s.random_output_len, s.random_range_ratio)
        requests.append(LoadRequest(texts.exact(num_prompt, prefix), num_prompt, num_output))
    return requests


def _near(rng: random.Random, length: int, ratio: float) -> int:
    return rng.randint(max(1, round(length * (1 - ratio))), max(1, round(length * (1 + ratio))))


def _prefix_repetition(s: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    num_prompt = s.prefix_repetition_prefix_len + s.prefix_repetition_suffix_len
    prefixes = [texts.exact(s.prefix_repetition_prefix_len) for _ in range(s.prefix_repetition_num_prefixes)]
    requests = [
        LoadRequest(texts.exact(num_prompt, prefix), num_prompt, s.prefix_repetition_output_len)
        for prefix in islice(cycle(prefixes), s.num_prompts)
    ]
    texts.rng.shuffle(requests)
    return requests


def _mixed(s: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    kinds = [("long", s.mixed_long_len, s.mixed_long_output_len)] * s.mixed_long_prompts
    kinds += [("short", s.mixed_short_len, s.mixed_short_output_len)] * s.mixed_short_prompts
    texts.rng.shuffle(kinds)
    return [LoadRequest(texts.exact(length), length, output, kind) for kind, length, output in kinds]


def _custom(s: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    sampling, known = SamplingParams(max_tokens=s.custom_output_len), ("max_tokens", "arrival_s")
    given = read_prompts(str(s.dataset_path), sampling, known=known)
    requests = []
    for each in given:
        text, output = str(each.content), each.sampling.max_tokens or s.custom_output_len
        requests.append(LoadRequest(text, texts.count(text), output, arrival_s=each.arrival_s))
    if any(each.arrival_s for each in requests):  # a second time they would arrive together with the first
        if len(requests) < s.num_prompts:
            log(f"{s.dataset_path}: {len(requests)} requests, not {s.num_prompts}: a trace is sent once")
        return requests[: s.num_prompts]
    return list(islice(cycle(requests), s.num_prompts))


def _sharegpt(s: DatasetSettings, texts: Texts) -> list[LoadRequest]:
    if s.dataset_path is None:
        lengths = draw_lengths(texts.rng, LIKE_SHAREGPT, *_MAX_SHAREGPT)
        drawn = ((length, s.sharegpt_output_len or output) for length, output in lengths)
        return [
            LoadRequest(texts.exact(length), length, output)
            for length, output in islice(drawn, s.num_prompts)
        ]
    talks = _talks(str(s.dataset_path))
    texts.rng.shuffle(talks)
    requests = list(islice(_fitting(talks, s, texts), s.num_prompts))
    if not requests:
        raise UserError(
            f"{s.dataset_path} has no usable conversation: add one with two turns of 4 tokens or more"
        )
    return list(islice(cycle(requests), s.num_prompts))


def _fitting(talks: list[tuple[str, str]], s: DatasetSettings, texts: Texts) -> Iterator[LoadRequest]:
    longest_prompt, longest = _MAX_SHAREGPT
    for prompt, answer in talks:
        if len(prompt) > 64 * longest_prompt:  # never so few tokens: not worth counting
            continue
        num_prompt = texts.count(prompt)
        num_output = s.sharegpt_output_len or texts.count(answer)
        least = num_prompt if s.sharegpt_output_len else min(num_prompt, num_output)
        if least >= LEAST_SHAREGPT and num_prompt <= longest_prompt and num_prompt + num_output <= longest:
            yield LoadRequest(prompt, num_prompt, num_output)


def _talks(path: str) -> list[tuple[str, str]]:
    """The first two turns of each conversation that has them; a line on stderr counts other entries.

    vLLM leaves those out too.
    """
    form = 'write a JSON list of {"conversations": [{"value": TEXT}, ...]}'
    text = read_text(path, "leave it out, for lengths like ShareGPT's")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a ShareGPT file ({one_line(error)}): {form}") from None
    if not isinstance(entries, list):
        raise UserError(f"{path} is not a ShareGPT file: {form}")
    talks = [_first_turns(each) for each in entries]
    if bad := [number for number, talk in enumerate(talks) if talk is None]:
        log(f"{path}: {len(bad)} of {len(talks)} entries have no two turns: left out, first entry {bad[0]}")
    return [talk for talk in talks if talk is not None]


def _first_turns(entry: object) -> tuple[str, str] | None:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    values = (
        [each.get("value") for each in turns[:2] if isinstance(each, dict)] if isinstance(turns, list) else []
    )
    match values:
        case [str(prompt), str(answer)]:
            return prompt, answer
    return None


_DATASETS: Final[Mapping[DatasetName, Callable[[DatasetSettings, Texts], list[LoadRequest]]]] = {
    "random": _random,
    "sharegpt": _sharegpt,
    "custom": _custom,
    "prefix_repetition": _prefix_repetition,
    "mixed": _mixed,
}
