"""The line that a server says when it is ready."""

from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.serving.server.settings import ServerSettings


def startup_line(served: ServedModel, settings: ServerSettings, port: int) -> str:
    """Model, address and what the engine works with."""
    config = served.config
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    who = "this machine only" if settings.is_loopback else "other machines too"
    open_to = "" if settings.api_key or settings.is_loopback else ", without a key"
    chunked = "on" if config.enable_chunked_prefill else "off"
    memory = readable(served.num_blocks * served.block_bytes)
    return " · ".join(
        [
            f"tiny-llm serves {', '.join(served.names)} on http://{host}:{port} ({who}{open_to})",
            f"chunked prefill is {chunked}, {config.max_num_batched_tokens:,} tokens a step",
            f"{served.num_blocks:,} KV blocks of {served.block_size} tokens ({memory})",
            f"{config.max_num_seqs} requests at a time, {served.max_num_tokens:,} tokens each",
        ]
    )
