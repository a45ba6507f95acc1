"""Checkpoints from the Hugging Face hub, through its own client and cache (which mlx-lm shares)."""

from pathlib import Path

from tiny_llm_lab.runtime.models.config.checkpoint_file import PATTERNS, require_files
from tiny_llm_lab.runtime.models.config.model_config import one_line
from tiny_llm_lab.runtime.models.weights.weight_files import weight_files
from tiny_llm_lab.types import UserError

_INSTEAD = "use a local folder, default or random:qwen3-0.6b"


def download(repo: str) -> Path:
    """The local copy of the hub repository `repo`; what is in the cache already needs no network."""
    # Imported here: a local checkpoint has no use for an HTTP client.
    from huggingface_hub import errors, snapshot_download

    try:
        return _cached(repo) or Path(snapshot_download(repo, allow_patterns=PATTERNS))
    except errors.GatedRepoError:
        complaint = f"{repo}: the hub asks you to accept its terms first: do so there and run hf auth login"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        complaint = f"{repo}: no such folder here and no such repository on the hub: check the name"
    except errors.LocalEntryNotFoundError as error:
        # The client tells "offline", "no route" and "server error" apart only by what lies below.
        reason = error.__cause__ or error
        complaint = f"{repo}: no network, or the hub is down ({one_line(reason)}): check it, or {_INSTEAD}"
    except Exception as error:  # a lost connection, a full disk: every transport raises its own
        complaint = f"{repo}: download failed ({one_line(error)}): run it again to resume, or {_INSTEAD}"
    raise UserError(complaint)


def _cached(repo: str) -> Path | None:
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(repo, allow_patterns=PATTERNS, local_files_only=True))
        # The client cannot know that a snapshot is complete if another tool began it.
        require_files(folder)
        return folder if (folder / "config.json").exists() and weight_files(folder) else None
    except (errors.LocalEntryNotFoundError, UserError):
        return None
