"""Checkpoints with random weights: the exact shape of a real model, without a download.

`random:NAME[,OPTION=NUMBER]...`, as in `random:qwen3-0.6b,layers=2,vocab=2048,bits=4`. NAME is a short name
of a model; the options are the fields of `Shape`. The text it writes is nonsense, its speed and its
memory are those of the real one. The folder has Hugging Face layout, so that mlx-lm loads it too, and
transformers if it is not quantized.

The weights come from NumPy's bit stream by exact arithmetic: normal draws, and MLX's on each of its devices,
differ in the last place, and the recorded answers of tests would not hold everywhere.
"""

import json
import math
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json, sampling_json
from tiny_llm_lab.runtime.models.random.shapes import (
    CONV_KERNEL,
    DTYPES,
    END_OF_TEXT,
    IM_END,
    TOKENIZER_SIZE,
    VISION_TOKENS,
    Shape,
    parse_shape,
)
from tiny_llm_lab.runtime.models.text.detokenizer import byte_characters
from tiny_llm_lab.runtime.models.weights import layout
from tiny_llm_lab.runtime.models.weights.safetensors_file import write_safetensors
from tiny_llm_lab.runtime.models.weights.tower_layout import PATCHES, TOWER
from tiny_llm_lab.types import ModelConfig, UserError

Piece = np.ndarray[Any, Any]
TensorShape = tuple[str, tuple[int, ...]]  # dtype as safetensors spells it, shape

# How many numbers we make at a time: 16 MB of float32.
_PIECE = 1 << 22
# Standard deviation of the logits: peaked enough that greedy decoding has clear winners.
_LOGIT_STD = 2.0
# How much a projection lengthens a vector. At 1 attention is nearly even and greedy answers soon repeat.
_GAIN = 2.0


def tensor_shapes(shape: Shape, name: str, size: layout.ParameterShape) -> dict[str, TensorShape]:
    """The tensors of parameter `name` of logical `size`, in the order in which we make them."""
    dense = "F32" if shape.bits == 32 else "BF16"
    if _is_dense(shape, name, size):
        return {name: (dense, size)}
    *above, columns = size
    module = name.removesuffix(".weight")
    groups = ("BF16", (*above, columns // shape.group))
    packed = ("U32", (*above, columns * shape.bits // 32))
    return {name: packed, f"{module}.scales": groups, f"{module}.biases": groups}


def _is_dense(shape: Shape, name: str, size: layout.ParameterShape) -> bool:
    return len(size) == 1 or shape.bits in DTYPES or name.endswith(layout.CONV) or name.startswith(TOWER)


def make_parameter(shape: Shape, name: str, size: layout.ParameterShape) -> Iterator[Piece]:
    """The data of the tensors of one parameter, one after the other, in pieces of a few MB."""
    if len(size) == 1:
        # Not 1 for norms and 0 for biases, so that a model without them gives other results.
        yield from _uniform(shape, name, size, _centre(shape, name), 0.5)
        return
    # Uniform from -half to half, which has a standard deviation of half / sqrt(3).
    is_vocabulary = name in (f"{layout.EMBEDDING}.weight", "lm_head.weight")
    inputs = (
        CONV_KERNEL if name.endswith(layout.CONV) else math.prod(size[1:]) if name == PATCHES else size[-1]
    )
    half = math.sqrt(3 / inputs) * (_LOGIT_STD if is_vocabulary else _GAIN)
    if _is_dense(shape, name, size):
        yield from _uniform(shape, name, size, 0, half)
        return
    # Packed bits may be any bits; q * scale + bias is uniform, with its own spread in every group.
    yield from _random_words(shape, name, math.prod(size) * shape.bits // 32)
    groups = (*size[:-1], size[-1] // shape.group)
    step = 2 * half / (2**shape.bits - 1)
    yield from _uniform(shape, f"{name}/scales", groups, step, step / 4)
    yield from _uniform(shape, f"{name}/biases", groups, -half, half / 16)


def _centre(shape: Shape, name: str) -> float:
    """The mean of a vector of parameters."""
    if name.startswith(TOWER):
        return 1.0 if ".norm" in name and name.endswith("weight") else 0.0
    if name.endswith("A_log"):
        return -1.0  # states fade over some ten tokens
    is_stored_without_one = shape.is_hybrid and shape.bits in DTYPES and "linear_attn" not in name
    return 1.0 if name.endswith(layout.NORMS) and not is_stored_without_one else 0.0


def _uniform(
    shape: Shape, name: str, size: layout.ParameterShape, centre: float, half_width: float
) -> Iterator[Piece]:
    draw = _generator(shape, name)
    for count in _pieces(math.prod(size)):
        noise = draw.random(count, dtype=np.float32) * np.float32(2) - np.float32(1)
        numbers = noise * np.float32(half_width) + np.float32(centre)
        # bfloat16 is the upper half of a float32. We cut without rounding, since the numbers are random.
        yield numbers if shape.bits == 32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)


def _random_words(shape: Shape, name: str, num_words: int) -> Iterator[Piece]:
    draw = _generator(shape, name)
    for count in _pieces(num_words):
        yield draw.integers(0, 2**32, count, dtype=np.uint32)


def _pieces(total: int) -> Iterator[int]:
    for begin in range(0, total, _PIECE):
        yield min(_PIECE, total - begin)


def _generator(shape: Shape, name: str) -> np.random.Generator:
    # By name, not by place, so that the first layers are the same however many follow.
    return np.random.Generator(np.random.PCG64([shape.seed, zlib.crc32(name.encode())]))


SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # the ids after the bytes
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_PICTURE = "".join(VISION_TOKENS)
PICTURE_TEMPLATE = (
    "{%- macro text(content) %}{%- if content is string %}{{- content }}{%- else %}{%- for part in content %}"
    "{{- part['text'] if part['type'] == 'text' else '"
    + _PICTURE
    + "' }}{%- endfor %}{%- endif %}{%- endmacro %}"
) + CHAT_TEMPLATE.replace("message['content']", "text(message['content'])")
_SYLLABLES = [first + second for first in "bdfghjklmnprstvz" for second in "aeiou"]


def write_byte_tokenizer(folder: Path, vocab_size: int, has_pictures: bool = False) -> None:
    """Write the tokenizer files of a vocabulary of `vocab_size` ids.

    Text is encoded as its bytes. The ids above them and the special tokens never come out of an
    encoder, but out of a model: each stands for a made-up word, so that any answer can be read.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = (*SPECIAL_TOKENS, *(VISION_TOKENS if has_pictures else ()))
    num_words = vocab_size - TOKENIZER_SIZE
    names = [*byte_characters(), *special, *map(_word, range(len(special) - len(SPECIAL_TOKENS), num_words))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": names[IM_END],
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": PICTURE_TEMPLATE if has_pictures else CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def _word(index: int) -> str:
    """A space (written Ġ) and three syllables or more: no two indices give the same word."""
    word = ""
    while index or len(word) < 6:
        index, syllable = divmod(index, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return "Ġ" + word


# Part of every folder's name: raise it when the same shape would get other contents.
_VERSION = "v2"


def find_or_make(text: str) -> Path:
    """The folder of `random:text`, written to the cache on first use; the same text, the same weights.

    Raises UserError if the text is not a shape, or the cache cannot be written.
    """
    shape = parse_shape(text)
    folder = cache_folder() / "random" / _VERSION / str(shape)
    try:
        if not folder.exists():
            _write_at_once(shape, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write it ({one_line(error)}): set TINY_LLM_CACHE") from None
    return folder


def write_checkpoint(shape: Shape, folder: Path) -> None:
    """Write configuration, weights and tokenizer of `shape` into the existing `folder`."""
    _write_json(folder / "config.json", config_json(shape))
    ends = {"eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    _write_json(folder / "generation_config.json", ends | sampling_json(shape))
    config, sizes = parameters_of(shape)
    _require_room(shape, sum(math.prod(size) for _, size in sizes), folder)
    write_byte_tokenizer(folder, shape.vocab, shape.tower > 0)
    parameters = list(layout.stored_shapes(sizes, config, _layout(shape)))
    tensors = {
        _published_name(shape, k): v
        for name, size in parameters
        for k, v in tensor_shapes(shape, name, size).items()
    }
    pieces = (piece for name, size in parameters for piece in make_parameter(shape, name, size))
    write_safetensors(folder / "model.safetensors", tensors, pieces)


def parameters_of(shape: Shape) -> tuple[ModelConfig, list[tuple[str, layout.ParameterShape]]]:
    """The configuration of a model of `shape`, and what its file has: with mtp=2 its draft layer alone."""
    config, _ = read_config(Path(f"random:{shape}"), config_json(replace(shape, mtp=0)))
    own = [] if shape.mtp == 2 else layout.parameter_shapes(config)
    return config, [*own, *(layout.draft_shapes(config) if shape.mtp else ())]


def _published_name(shape: Shape, name: str) -> str:
    """Of a tensor: of a model that reads pictures as transformers saves it, of a packed layer as MLX does."""
    if shape.mtp == 2 and shape.bits not in DTYPES:
        return name.removeprefix(layout.DRAFTS)
    if shape.tower and name.startswith(TOWER):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1) if shape.tower else name


def _layout(shape: Shape) -> layout.Layout:
    """As real ones come: experts are stacked in packed ones of mlx-lm, else numbered or fused."""
    has_fused_inputs = shape.model_type == "qwen3_next"
    if shape.bits not in DTYPES:
        return layout.Layout("stacked", has_fused_inputs=has_fused_inputs)
    return layout.Layout(
        "fused" if shape.model_type == "qwen3_5_moe" else "numbered",
        has_fused_inputs=has_fused_inputs,
        is_original=True,
    )


def _write_at_once(shape: Shape, folder: Path) -> None:
    """Write all of the folder or nothing, even if another process writes it or this one is interrupted."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        write_checkpoint(shape, unfinished)
        unfinished.chmod(0o755)  # mkdtemp makes it readable by its owner only
        unfinished.rename(folder)
    except OSError:
        # A rename onto a folder with files fails; then another process was first, with the same contents.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _require_room(shape: Shape, num_parameters: int, folder: Path) -> None:
    """Raise UserError if the weights of `shape` would not fit on the disk of `folder`."""
    num_bytes, free = num_parameters * shape.bits // 8, shutil.disk_usage(folder).free
    if num_bytes > free:
        message = f"its weights take {readable(num_bytes)}, and the disk has {readable(free)}"
        raise UserError(f"random:{shape}: {message}: choose smaller sizes, or set TINY_LLM_CACHE")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
