"""The process of an engine whose device fails: `python -m tests.helpers.failing_engine DESCRIPTOR`."""

import sys

from tiny_llm_lab.serving.async_engine.engine_process import main
from tiny_llm_ref.engine.core import EngineCore

TIMEOUT = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)


def _fail(core: EngineCore) -> None:
    raise RuntimeError(TIMEOUT)


if __name__ == "__main__":
    EngineCore.advance = _fail  # type: ignore[method-assign, assignment]
    sys.exit(main())
