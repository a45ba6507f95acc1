"""Files as pictures: which are read, and which are refused before they cost time or memory."""

import base64
import binascii
import warnings
from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image, ImageFile, ImageOps

from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.errors import require

MAX_BYTES: Final = 20 * 2**20
MAX_PIXELS: Final = 50_000_000
MAX_RATIO: Final = 200  # of the sides; transformers' processor takes no more
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# A scan of 75 bytes takes 40 ms, and a file has room for 280,000 of them. Encoders write 20 at most.
_MOST_SCANS: Final = 100
_SCAN: Final = b"\xff\xda"


def data_of(url: str) -> bytes:
    """Returns the bytes of a data URL. Raises UserError for one that is too long, or no base64."""
    head, comma, text = url.partition(",")
    require_size(len(text) * 3 // 4)
    if not comma or not head.lower().endswith(";base64"):
        raise UserError("is no data URL with base64: send data:image/png;base64,...")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("has characters or an end that base64 does not have: encode the file again") from None


def require_size(num_bytes: int) -> None:
    """Raise UserError for a file that is too large."""
    if num_bytes > MAX_BYTES:
        raise UserError(f"has more than {MAX_BYTES >> 20} MiB: send a smaller picture")


def opened(data: bytes) -> ImageFile.ImageFile:
    """Returns a picture of which only the header is read. Raises UserError for one that is not taken."""
    require_size(len(data))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a size that is refused below
            image = Image.open(BytesIO(data), formats=_FORMATS)
        # A JPEG of several pictures, as phones write it, begins with the one that is meant.
        is_moving = image.format != "MPO" and getattr(image, "is_animated", False)
    except Image.DecompressionBombError:
        raise UserError(f"has more than {MAX_PIXELS:,} pixels: send a smaller picture") from None
    except Exception:  # readers of damaged files raise anything
        raise UserError("is no PNG, JPEG, WebP, GIF or BMP file: convert it, and send all of it") from None
    num_scans = data.count(_SCAN) if image.format in ("JPEG", "MPO") else 0
    checks = {
        "moves, and only still pictures are read: send one of its frames": not is_moving,
        "has too many scans: save it as a JPEG that is not progressive": num_scans <= _MOST_SCANS,
    }
    require(checks)
    return image


def require_sides(size: tuple[int, int]) -> None:
    """Raise UserError for a picture of too many pixels, or too long for its height."""
    (short, long), both = sorted(size), "{} x {} pixels".format(*size)
    checks = {
        f"has {both}, and {MAX_PIXELS:,} are the most: send a smaller one": short * long <= MAX_PIXELS,
        f"has {both}, and one side may be {MAX_RATIO} times the other: cut it": 0 < long <= MAX_RATIO * short,
    }
    require(checks)


def decoded(image: Image.Image) -> Image.Image:
    """Returns `image` with its pixels, upright, in 8 bits a channel. Raises UserError for a damaged one."""
    try:
        image.load()
        upright = ImageOps.exif_transpose(image)
    except Exception as error:  # see above
        complaint = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"is damaged ({complaint}): send all of it, or save it again") from None
    if not upright.mode.startswith("I"):
        return upright
    return Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))  # Pillow would make it all white
