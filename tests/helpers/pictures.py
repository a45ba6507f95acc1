"""Pictures, models small enough for a test that read them, and engines that take requests with them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import QWEN3

from tiny_llm_lab.runtime.models.loading import config_of
from tiny_llm_lab.runtime.pictures.picture import Picture, expanded
from tiny_llm_lab.runtime.pictures.request_pictures import RequestPictures
from tiny_llm_lab.runtime.pictures.rows_store import RowsStore
from tiny_llm_lab.runtime.pictures.seeing import StepReader
from tiny_llm_lab.runtime.pictures.tower import Tower
from tiny_llm_lab.serving.picture_queue import PictureQueue
from tiny_llm_lab.types import EngineOptions, Prompt, Weight
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, PictureConfig
from tiny_llm_lab.types.scheduling.no_prefix_disk import NoPrefixDisk

PLACE = 2  # the token of a picture's rows
TOWER = PictureConfig(
    token_id=PLACE,
    sections=(3, 3, 2),
    num_layers=3,
    hidden_size=32,
    intermediate_size=40,
    num_heads=2,
    patch_size=4,
    merge=2,
    num_frames=2,
    num_positions=25,
    deep_layers=(1,),
)
SEEING = replace(QWEN3, pictures=TOWER)
SEEING_HYBRID = replace(HYBRID, pictures=replace(TOWER, sections=(2, 1, 1), deep_layers=()))


GOLDEN_NAMES = ("random:qwen3-vl-shrunk", "random:qwen3.5-vl-shrunk")


def picture(seed: int, rows: int, columns: int, size: int = 4) -> Picture:
    """Noise, of rows x columns patches of size x size pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (rows * columns, 3, size, size), np.uint8)
    return Picture(pixels, rows, columns)


def golden_prompt(name: str) -> tuple[list[int], list[Picture]]:
    """Text and three pictures of odd sizes."""
    config = config_of(name).pictures
    assert config is not None
    pictures = [picture(i, *size, config.patch_size) for i, size in enumerate(((4, 6), (2, 14), (10, 2)))]
    text = [*b"What is in this picture?"]
    places = [*text, config.token_id, *text[:5], config.token_id, text[5], config.token_id, *text[7:20]]
    return expanded(places, pictures, config), pictures


def with_pictures(rng: random.Random, prompt: Prompt, limit: int) -> Prompt:
    """The same prompt with one to three pictures, of few sorts, so that they come again; as many as fit."""
    tokens, pictures = [3 if token == PLACE else token for token in prompt.content], []
    for _ in range(rng.choice((1, 1, 2, 3))):
        rows, columns = rng.choice(((2, 2), (2, 4), (6, 2), (4, 6)))
        each = picture(rng.randrange(3), rows, columns)
        if len(tokens) + each.num_tokens(TOWER) < limit:
            pictures.append(each)
    places = sorted(rng.sample(range(len(tokens) + 1), k=min(len(pictures), len(tokens) + 1)))
    places += [len(tokens)] * (len(pictures) - len(places))
    for at in reversed(places):
        tokens[at:at] = [PLACE]
    if not pictures:
        return prompt
    tokens = expanded(tokens, pictures, TOWER)
    return replace(prompt, content=tokens, pictures=RequestPictures(tokens, pictures, TOWER, _NOBODY))


class _Nobody:
    def reader(self, slices: Sequence[Any]) -> Any:
        raise AssertionError("a prompt's pictures are not an engine's")


_NOBODY = _Nobody()


class SeeingEngine:
    """What an engine of a model is built with, so that it takes requests with pictures."""

    def __init__(self, model: Any, weights: dict[str, Weight], whole: Any = None, num_bytes: int = 0) -> None:
        """`whole` drafts for `model` with a layer of its own; rows of `num_bytes` are kept. Sets queue."""
        disk = NoPrefixDisk()
        self.store = RowsStore(Tower(model.config.pictures, weights, model.ops), num_bytes, disk.counts)
        reader = StepReader(model, model if whole is None else whole, self.store)
        self.queue = PictureQueue(reader, model.config, disk, None)

    def options(self, **settings: Any) -> EngineOptions:
        """Options that the engine must have."""
        return EngineOptions(**settings, prefix_disk=self.queue, budget_controller=self.queue)  # type: ignore[arg-type]

    def prompt(self, prompt: Prompt) -> Prompt:
        """The same for this engine."""
        if not isinstance(prompt.pictures, RequestPictures):
            return prompt
        pictures = [span.picture for span in prompt.pictures.spans]
        try:
            own = self.queue.with_pictures(list(prompt.content), pictures)
        except ValueError:
            own = NO_PICTURES
        return replace(prompt, pictures=own)


def seeing_weights(config: Any) -> dict[str, Weight]:
    """All weights of a toy that reads pictures; rows of its tower are as long as those of its embedding."""
    return hybrid_weights(config, 6)
