"""Names of checkpoints, and their folders."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tiny_llm_lab.runtime.models.config.fields import PATTERNS, one_line, require_files
from tiny_llm_lab.runtime.models.weights.safetensors_file import weight_files
from tiny_llm_lab.types import UserError

_INSTEAD = "use a local folder, default or random:qwen3-0.6b"


def download(repo: str, patterns: Sequence[str] = PATTERNS) -> Path:
    """The local copy of the hub repository `repo`, or of some files; a cached one needs no network."""
    # Imported here, because a local checkpoint needs no HTTP client.
    from huggingface_hub import errors, snapshot_download

    try:
        return _cached(repo) or Path(snapshot_download(repo, allow_patterns=[*patterns]))
    except errors.GatedRepoError:
        complaint = f"{repo}: accept its terms on the hub first, then run hf auth login"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        complaint = f"{repo}: is neither a folder here nor a repository on the hub: check the name"
    except errors.LocalEntryNotFoundError as error:
        # Only the causes of the client's error tell "offline", "no route" and "server error" apart.
        reason = error.__cause__ or error
        complaint = f"{repo}: cannot reach the hub ({one_line(reason)}): check your network, or {_INSTEAD}"
    except Exception as error:  # a lost connection, a full disk: every transport raises its own
        complaint = f"{repo}: the download failed ({one_line(error)}): run it again, or {_INSTEAD}"
    raise UserError(complaint)


def _cached(repo: str) -> Path | None:
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(repo, allow_patterns=PATTERNS, local_files_only=True))
        # If another tool began a snapshot, the client cannot know whether it is complete.
        require_files(folder)
        return folder if (folder / "config.json").exists() and weight_files(folder) else None
    except (errors.LocalEntryNotFoundError, UserError):
        return None


DEFAULT = "default"
# The models that come with the package, by name.
SHIPPED = {name: Path(__file__).parent / name.replace("-", "_") for name in (DEFAULT, "default-hybrid")}
RANDOM_PREFIX = "random:"
HUB_IDS: dict[str, str] = tomllib.loads((Path(__file__).parent / "hub_ids.toml").read_text("utf-8"))
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def find_folder(name: str, patterns: Sequence[str] = PATTERNS) -> Path:
    """The folder of the checkpoint called `name`: made, downloaded (these files), or only looked up."""
    if name in SHIPPED:
        return _shipped_folder(name)
    if name.startswith(RANDOM_PREFIX):
        from tiny_llm_lab.runtime.models.random.random_checkpoint import find_or_make

        return find_or_make(name.removeprefix(RANDOM_PREFIX))
    folder = _existing(name)
    if name in HUB_IDS or (folder is None and _HUB_ID.fullmatch(name)):
        return download(HUB_IDS.get(name, name), patterns)
    if folder is not None and folder.is_dir():
        return folder
    if folder is not None:
        raise UserError(f"{name} is a file: name the folder that it is in")
    if "/" in name or name.startswith(("~", ".")):
        raise UserError(f"{name} is not a folder: name one with a checkpoint, or use {DEFAULT!r}")
    known = ", ".join([*SHIPPED, *HUB_IDS])
    raise UserError(
        f"unknown model {name!r}: choose one of {known}, a local folder, a hub id such as "
        f"{HUB_IDS['qwen3-0.6b']}, or {RANDOM_PREFIX}qwen3-0.6b"
    )


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a zero byte
        return None


def _shipped_folder(name: str) -> Path:
    folder = SHIPPED[name]
    if not folder.is_dir():
        raise UserError(f"the {name} model is missing in {folder}: restore it with git, or install again")
    return folder
