"""The folder that an engine's settings ask for."""

from pathlib import Path
from typing import cast

from tiny_llm_lab.runtime.kv_memory import parse_size
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.prefix_disk.fingerprint import fingerprint
from tiny_llm_lab.serving.prefix_disk.folder import Folder
from tiny_llm_lab.serving.prefix_disk.prefix_disk import PrefixDisk
from tiny_llm_lab.types import PagedModel
from tiny_llm_lab.types.scheduling.no_prefix_disk import NO_PREFIX_DISK, NoPrefixDisk


def prefix_disk(loaded: Loaded, settings: EngineSettings) -> NoPrefixDisk:
    """What --prefix-cache-dir asks for. Raises UserError if we can't write there."""
    if settings.prefix_cache_dir is None:
        return NO_PREFIX_DISK
    path = Path(settings.prefix_cache_dir).expanduser()
    folder = Folder(path, parse_size(settings.prefix_cache_disk))
    package = str(getattr(loaded.solution, "__name__", type(loaded.solution).__qualname__))
    model = cast(PagedModel, loaded.model)
    return PrefixDisk(folder, fingerprint(loaded.checkpoint, model, package, path))
