"""Pictures for tests, as files of every kind."""

import base64
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from tests.helpers.pictures import TOWER

from tiny_llm_lab.types.computing.pictures import PictureConfig


def picture_config(token_id: int) -> PictureConfig:
    """Of a tower with Qwen3-VL's patches."""
    return replace(TOWER, token_id=token_id, patch_size=16)


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A picture of noise."""
    rng = np.random.default_rng(seed)
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    pixels = rng.integers(0, 256, (height, width, *channels), dtype=np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of its file."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    """The file as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
