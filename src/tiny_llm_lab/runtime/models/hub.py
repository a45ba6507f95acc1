"""Checkpoints from the Hugging Face hub, through its own client and cache (which mlx-lm shares)."""

from pathlib import Path

from tiny_llm_lab.runtime.models.config.checkpoint_file import PATTERNS, require_files
from tiny_llm_lab.runtime.models.config.model_config import one_line
from tiny_llm_lab.runtime.models.weights.weight_files import weight_files
from tiny_llm_lab.types import UserError

_INSTEAD = "use a local folder, default or random:qwen3-0.6b"


def download(repo: str) -> Path:
    """The local copy of the hub repository `repo`; a cached one needs no network."""
    # Imported here, because a local checkpoint needs no HTTP client.
    from huggingface_hub import errors, snapshot_download

    try:
        return _cached(repo) or Path(snapshot_download(repo, allow_patterns=PATTERNS))
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
