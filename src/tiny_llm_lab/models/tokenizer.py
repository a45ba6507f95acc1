"""The tokenizer of a checkpoint, behind the two methods and two properties that solutions use."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tiny_llm_lab.models.config import one_line, read_json
from tiny_llm_lab.types import Tokenizer, UserError

_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))

# Solutions check lengths and say so; transformers would print a warning of its own before.
_UNLIMITED = 10**30


def load_tokenizer(folder: Path) -> Tokenizer:
    """mlx-lm's tokenizer of the checkpoint in `folder`, ending texts at every token the folder declares."""
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise UserError(f"{folder}: holds no tokenizer.json: fetch the whole checkpoint again")
    eos = _declared_eos(folder)
    # Imported here: it brings transformers, which takes seconds that `--help` should not pay.
    from mlx_lm.tokenizer_utils import load

    try:
        return cast(Tokenizer, load(folder, {"model_max_length": _UNLIMITED}, eos_token_ids=eos))
    except Exception as error:  # the libraries below raise bare Exception for a damaged file
        complaint = f"its tokenizer cannot be read ({one_line(error)})"
        raise UserError(f"{folder}: {complaint}: fetch its files again") from None


def _declared_eos(folder: Path) -> list[int]:
    # Qwen declares one id in config.json and two in generation_config.json; any of them ends a text.
    files = [folder / name for name in ("config.json", "generation_config.json")]
    declared = [read_json(file).get("eos_token_id") for file in files if file.exists()]
    return sorted({token for value in declared for token in _as_ids(value)})


def _as_ids(value: Any) -> Iterable[int]:
    values = value if isinstance(value, list) else [value]
    return [token for token in values if isinstance(token, int)]
