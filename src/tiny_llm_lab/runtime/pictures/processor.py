"""Pictures as patches, by transformers' own processor on Pillow."""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
from PIL import Image

from tiny_llm_lab.runtime.models.config.fields import one_line, read_json
from tiny_llm_lab.runtime.pictures.decoding import decoded, opened, require_sides
from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES, Picture
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

# Qwen3-VL's, for a checkpoint whose file is missing.
DEFAULTS: Final[Mapping[str, Any]] = {
    "size": {"shortest_edge": 2**16, "longest_edge": 2**24},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_KEPT_BYTES: Final = 256 * 2**20  # of patches: a conversation sends its pictures with each turn
_KINDS: Final = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")


def processor_settings(folder: Path) -> Mapping[str, Any]:
    """Returns what a checkpoint says of its pictures' preparation. Raises UserError for another kind."""
    places = {"processor_config.json": ("image_processor",), "preprocessor_config.json": ()}
    for name, keys in places.items():
        found: Any = read_json(folder / name) if (folder / name).is_file() else None
        for key in keys:
            found = (found or {}).get(key)
        if isinstance(found, dict):
            if (kind := found.get("image_processor_type", _KINDS[0])) not in _KINDS:
                raise UserError(f"{folder / name}: {kind} is unknown: choose a checkpoint with {_KINDS[0]}")
            return {**DEFAULTS, **found}
    return DEFAULTS


class PictureProcessor:
    """Cuts pictures into patches, as a checkpoint wants them. Threads may share it."""

    def __init__(self, folder: Path, config: PictureConfig) -> None:
        """Raises UserError for a checkpoint in `folder` whose files don't fit its `config`."""
        # On import, transformers advises to install PyTorch.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        # Imported here, because it takes a second, and only models with a tower need it.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        side = {"patch_size": config.patch_size, "merge_size": config.merge}
        settings = processor_settings(folder)
        if wrong := [name for name, value in side.items() if settings.get(name, value) != value]:
            raise UserError(f"{folder}: {wrong[0]} is not that of config.json: fetch its files again")
        # The tower normalises, and repeats a picture as its frames: what we keep has a byte a value.
        ours = {**side, "temporal_patch_size": 1, "do_rescale": False, "do_normalize": False}
        try:
            self._library = Qwen2VLImageProcessorPil.from_dict(deepcopy({**settings, **ours}))
            limits = self._library.size
            self._least, self._most = int(limits["shortest_edge"]), int(limits["longest_edge"])
        except Exception as error:  # of whatever transformers makes of the values
            raise UserError(f"{folder}: its preprocessor_config.json is wrong ({one_line(error)})") from None
        self._config, self._unit = config, (config.patch_size * config.merge) ** 2  # pixels of a token
        self._kept: OrderedDict[tuple[bytes, int], Picture] = OrderedDict()
        self._lock = Lock()

    def read(
        self, given: bytes | Image.Image, most_tokens: int, check: Callable[[int], object] = int
    ) -> Picture:
        """Returns a picture of at most `most_tokens`, 200 or more, for which it is made smaller.

        `check` is called with their number before the file is decoded. Raises UserError for a bad one.
        """
        key = hashlib.sha256(given).digest() if isinstance(given, bytes) else b"", most_tokens
        with self._lock:
            if (picture := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
        if picture is None:
            image = opened(given) if isinstance(given, bytes) else given
            require_sides(image.size)
            most = min(self._most, most_tokens * self._unit, MOST_PATCHES * self._config.patch_size**2)
            least = min(self._least, most)
            limits = {"min_pixels": least, "max_pixels": most}
            num_patches = self._library.get_number_of_image_patches(image.height, image.width, limits)
            check(num_patches // self._config.merge**2)
            size = {"shortest_edge": least, "longest_edge": most}
            picture = self._cut(self._library(decoded(image), size=size))
            self._keep(key, picture)
        else:
            check(picture.num_tokens(self._config))
        return picture

    def _cut(self, found: Mapping[str, Any]) -> Picture:
        [[_, rows, columns]] = found["image_grid_thw"].tolist()
        side = self._config.patch_size
        patches = found["pixel_values"].astype(np.uint8).reshape(rows * columns, 3, side, side)
        return Picture(patches, rows, columns)

    def _keep(self, key: tuple[bytes, int], picture: Picture) -> None:
        if not key[0]:
            return
        with self._lock:
            self._kept[key] = picture
            while sum(each.patches.nbytes for each in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
