"""Files as patches: the same as transformers makes of them, and one line about those that are refused."""

import json
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from tests.helpers.picture_files import data_url, file_of, picture, picture_config
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tiny_llm_lab.runtime.pictures.decoding import MAX_BYTES, data_of
from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES
from tiny_llm_lab.runtime.pictures.processor import PictureProcessor
from tiny_llm_lab.types import UserError

CONFIG = picture_config(9)
LIMITS = {"size": {"shortest_edge": 2**16, "longest_edge": 2**24}}
SETTINGS = {"patch_size": 16, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, **LIMITS}
SIZES = [(1, 1), (33, 17), (640, 480), (1990, 10), (31, 2000)]
KINDS = [("RGB", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "GIF")]
KINDS += [("RGBA", "WEBP"), ("RGB", "BMP"), ("P", "PNG"), ("1", "PNG")]


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return PictureProcessor(tmp_path_factory.mktemp("no files"), CONFIG)


@pytest.mark.parametrize(("mode", "kind"), KINDS)
def test_patches_are_those_of_transformers(processor, mode, kind):
    library = Qwen2VLImageProcessorPil(**SETTINGS)
    for seed, size in enumerate(SIZES):
        whole = picture(*size, mode if mode in ("RGB", "RGBA", "L", "LA", "CMYK") else "RGB", seed)
        data = file_of(whole.convert(mode), kind)
        ours, theirs = processor.read(data, 4096), library(Image.open(BytesIO(data)))
        assert theirs["image_grid_thw"].tolist() == [[1, ours.rows, ours.columns]]
        scaled = (ours.patches * np.float64(1 / 255)).astype(np.float32)
        frames = np.repeat((scaled[:, :, None] - np.float32(0.5)) / np.float32(0.5), 2, axis=2)
        np.testing.assert_array_equal(frames.reshape(len(frames), -1), theirs["pixel_values"])


def test_16_bits_become_8(processor):
    data = file_of(Image.fromarray(np.full((64, 64), 32768, np.uint16)))
    assert np.unique(processor.read(data, 64).patches).tolist() == [128]


def test_a_photo_is_upright_and_the_first_of_its_file(processor):
    sideways, upright = picture(96, 64), picture(96, 64).transpose(Image.Transpose.ROTATE_270)
    exif = Image.Exif()
    exif[0x0112] = 6
    expected = processor.read(file_of(upright), 64)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        found = processor.read(file_of(sideways, kind, exif=exif, **options), 64)
        assert found.digest == expected.digest
    several = file_of(sideways, "MPO", save_all=True, append_images=[upright])
    assert (
        processor.read(several, 64).patches == processor.read(file_of(sideways, "JPEG"), 64).patches
    ).all()


@pytest.mark.parametrize("most", [200, 256, 1000])
def test_a_picture_has_no_more_tokens_than_it_may(processor, most):
    counted = []
    for size in ((1999, 10), (10, 1999), (640, 480), (64, 64), (1999, 300)):
        found = processor.read(picture(*size), most, counted.append)
        assert 1 <= found.num_tokens(CONFIG) == counted[-1] <= most


def test_a_picture_has_no_more_patches_than_a_tower_takes(processor):
    assert MOST_PATCHES * 0.9 < len(processor.read(picture(2500, 2100), 10**6).patches) <= MOST_PATCHES


def declared(width, height):
    """A PNG that says its size and has nothing else."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + body + b"\0\0\0\0IDAT\x35\xaf\x06\x1e"


def many_scans():
    data = file_of(picture(8, 8), "JPEG", progressive=True)
    start, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    return data[:end] + data[start:end] * 120 + data[end:]


FRAMES = {"save_all": True, "append_images": [picture(8, 8, seed=1)]}
PNG = file_of(picture(64, 64))
REFUSED = {
    "nothing": (b"", "is no PNG, JPEG"),
    "text": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is no PNG, JPEG"),
    "another kind": (file_of(picture(8, 8), "TIFF"), "is no PNG, JPEG"),
    "half a head": (PNG[:20], "is no PNG, JPEG"),
    "half a body": (PNG[: len(PNG) // 2], "is damaged .*: send all of it"),
    "half a JPEG": (file_of(picture(64, 64), "JPEG")[:1500], "is damaged .*: send all of it"),
    "half a WebP": (file_of(picture(64, 64), "WEBP")[:900], "is (damaged|no PNG)"),
    "GIF that moves": (file_of(picture(8, 8), "GIF", **FRAMES), "moves"),
    "PNG that moves": (file_of(picture(8, 8), "PNG", **FRAMES), "moves"),
    "WebP that moves": (file_of(picture(8, 8), "WEBP", **FRAMES), "moves"),
    "a ribbon": (file_of(picture(20_000, 20)), "20000 x 20 pixels, and one side may be 200 times"),
    "large": (declared(8000, 8000), "8000 x 8000 pixels, and 50,000,000 are the most"),
    "larger": (declared(12_000, 12_000), "12000 x 12000 pixels, and 50,000,000 are the most"),
    "a bomb": (declared(60_000, 60_000), "has more than 50,000,000 pixels"),
    "a slow JPEG": (many_scans(), "too many scans"),
    "a long file": (PNG + bytes(MAX_BYTES), "has more than 20 MiB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_file_is_refused_in_one_line(processor, name):
    data, says = REFUSED[name]
    counted = []
    with pytest.raises(UserError, match=says) as refused:
        processor.read(data, 4096, counted.append)
    assert "\n" not in str(refused.value)
    assert not counted or "damaged" in str(refused.value), "it is refused before it is decoded"


BAD_URLS = [
    ("data:image/png;base64", "is no data URL"),
    ("data:image/svg+xml,<svg/>", "is no data URL"),
    ("data:image/png;base64,a*b=", "base64"),
    ("data:image/png;base64,abc", "base64"),
    ("data:image/png;base64,é", "base64"),
    ("data:image/png;base64," + "A" * (MAX_BYTES * 4 // 3 + 8), "has more than 20 MiB"),
]


@pytest.mark.parametrize(("url", "says"), BAD_URLS)
def test_a_bad_data_url_is_refused(url, says):
    with pytest.raises(UserError, match=says):
        data_of(url)


def test_a_data_url_is_its_bytes():
    assert data_of(data_url(PNG)) == data_of(data_url(PNG, "")) == PNG


def test_a_picture_that_comes_again_is_not_decoded_again(processor):
    first, small = processor.read(PNG, 64), processor.read(PNG, 2)
    assert small.num_tokens(CONFIG) <= 2 < first.num_tokens(CONFIG)
    assert processor.read(PNG, 64) is first
    for seed in range(16):
        processor.read(file_of(picture(16, 16, seed=seed)), 64)
    assert processor.read(PNG, 64) is not first, "what was used least recently goes"


OWN_LIMITS = [
    ({"size": {"shortest_edge": 1024, "longest_edge": 4096}}, 4),
    ({"min_pixels": 1024, "max_pixels": 9216}, 9),
    ({"image_processor_type": "Qwen2VLImageProcessorFast"}, 400),
    ({"patch_size": 14}, "another patch_size than 16"),
    ({"image_mean": [0.48, 0.45, 0.4]}, "another image_mean than"),
    ({"size": {"height": 224, "width": 224}}, "is wrong"),
    ({"size": 7}, "is wrong"),
]


@pytest.mark.parametrize(("changes", "tokens"), OWN_LIMITS)
@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_limits_are_those_of_the_checkpoint(tmp_path, name, changes, tokens):
    content = SETTINGS | changes
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / name).write_text(json.dumps(content if name[:3] == "pre" else {"image_processor": content}))
    if isinstance(tokens, str):
        with pytest.raises(UserError, match=tokens):
            PictureProcessor(tmp_path, CONFIG)
        return
    assert PictureProcessor(tmp_path, CONFIG).read(picture(640, 640), 4096).num_tokens(CONFIG) == tokens
