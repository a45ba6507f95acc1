"""Pictures as patches, by transformers' own processor on Pillow."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Semaphore
from typing import Any, Final

import numpy as np
from PIL import Image

from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.runtime.pictures.contents import PartError, Source
from tiny_llm_lab.runtime.pictures.decoding import decoded, opened, require_sides
from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES, Picture
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

# Qwen3-VL's. The tower normalises with the same values, and knows no others.
_HALF: Final = (0.5, 0.5, 0.5)
_DEFAULTS: Final[Mapping[str, Any]] = {"min_pixels": 2**16, "max_pixels": 2**24}
# The tower also repeats a picture as its frames: what we keep has a byte a value.
_RAW: Final = {"do_rescale": False, "do_normalize": False, "temporal_patch_size": 1}
_AT_ONCE: Final = 2  # pictures that are decoded; one of MAX_PIXELS takes half a gigabyte
_KEPT: Final = 16  # the last ones: a conversation sends its pictures with each turn


class PictureProcessor:
    """Cuts pictures into patches, as a checkpoint wants them. Threads may share it."""

    def __init__(self, folder: Path, config: PictureConfig) -> None:
        """Raises UserError for a checkpoint in `folder` whose files don't fit its `config`."""
        self._config, self._places = config, Semaphore(_AT_ONCE)
        self._library = _library(folder, config)
        self._kept = lru_cache(_KEPT)(self._patches)

    def read_all(
        self,
        sources: Sequence[Source],
        most_tokens: int,
        load: Callable[[object], bytes | Image.Image],
        check: Callable[[int], object] = int,
    ) -> list[Picture]:
        """Returns pictures of at most `most_tokens` each; `load` returns the file of a source.

        `check` is called with the number of all their tokens so far, before the last of them is decoded.
        Raises PartError for one that can't be had, and what `check` raises.
        """
        found: list[Picture] = []
        for each in sources:
            total = sum(picture.num_tokens(self._config) for picture in found)
            try:
                found.append(self.read(load(each.content), each.most_tokens(most_tokens), check, total))
            except UserError as error:
                raise PartError(each.place, f"{each.place} {error}") from None
        return found

    def read(
        self,
        given: bytes | Image.Image,
        most_tokens: int,
        check: Callable[[int], object] = int,
        total: int = 0,
    ) -> Picture:
        """Returns a picture of at most `most_tokens`, 200 or more, for which it is made smaller.

        `check` is called with their number and `total`, before the file is decoded. Raises UserError.
        """
        config, unit = self._config, self._config.merge**2
        image = opened(given) if isinstance(given, bytes) else given
        require_sides(image.size)
        pixels = min(MOST_PATCHES, most_tokens * unit) * config.patch_size**2
        most = min(self._library.size["longest_edge"], pixels)
        least = min(self._library.size["shortest_edge"], most)
        sides = image.height, image.width, {"min_pixels": least, "max_pixels": most}
        check(total + self._library.get_number_of_image_patches(*sides) // unit)
        patches = self._kept if isinstance(given, bytes) else self._patches  # PIL's have no hash
        return patches(given, least, most)

    def _patches(self, given: bytes | Image.Image, least: int, most: int) -> Picture:
        with self._places:
            image = decoded(opened(given) if isinstance(given, bytes) else given)
            size = {"shortest_edge": least, "longest_edge": most}
            found: Mapping[str, Any] = self._library(image, size=size, **_RAW)
        [[_, rows, columns]] = found["image_grid_thw"].tolist()
        side = self._config.patch_size
        patches = found["pixel_values"].astype(np.uint8).reshape(rows * columns, 3, side, side)
        return Picture(patches, rows, columns)


def _library(folder: Path, config: PictureConfig) -> Any:
    """transformers' processor of a checkpoint; Qwen3-VL's if it has no file of its own."""
    # On import, transformers advises to install PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Imported here, because it takes a second, and only models with a tower need it.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    wanted: dict[str, Any] = {"patch_size": config.patch_size, "merge_size": config.merge}
    wanted |= {"image_mean": _HALF, "image_std": _HALF}
    place = f"{folder}: its preprocessor_config.json"
    try:
        library = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
        _ = int(library.size["shortest_edge"]), int(library.size["longest_edge"])
    except Exception as error:  # of whatever transformers makes of the values
        if (folder / "preprocessor_config.json").is_file():
            raise UserError(f"{place} is wrong ({one_line(error)}): fetch it again") from None
        library = Qwen2VLImageProcessorPil(**_DEFAULTS, **wanted)
    for name, value in wanted.items():
        if not np.array_equal(getattr(library, name), value):
            raise UserError(f"{place} has another {name} than {value}: choose another checkpoint")
    return library
