"""Downloads from the model hub, through the client that mlx-lm uses."""

from pathlib import Path

from tiny_llm_lab.types import UserError

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
INSTEAD = "use default, a local folder or random:NAME"


def download(hub_id: str) -> Path:
    """The local copy of a hub repository; what is cached already needs no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS))
    except (GatedRepoError, RepositoryNotFoundError, HFValidationError):
        complaint = f"{hub_id} is not a public repository of the hub: check the name, or {INSTEAD}"
        raise UserError(complaint) from None
    except Exception as error:  # whatever the transport raises: no network, a proxy, a full disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        complaint = f"{hub_id} cannot be downloaded ({reason[:90]}): check the network, or {INSTEAD}"
        raise UserError(complaint) from None
