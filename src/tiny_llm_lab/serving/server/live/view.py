"""What the pages of one server share."""

from dataclasses import dataclass, field

from tiny_llm_lab.serving.server.live.controls import LiveControls
from tiny_llm_lab.serving.server.live.recorder import StepRecorder


@dataclass(frozen=True)
class LiveView:
    """The recorder, a listener of the engine, and whether pages may change the engine."""

    has_controls: bool = False
    recorder: StepRecorder = field(default_factory=StepRecorder)
    controls: LiveControls = field(default_factory=LiveControls)
