"""The solution's engine in the contest."""

import mlx.core as mx

from tiny_llm_lab.trace import ScheduleProbe
from tiny_llm_lab.types import SchedulerConfig

from .contest import Contest, Entry, Outcome, outcome
from .load import serve
from .setting import Setting, free_memory


def own_entry(setting: Setting) -> Entry:
    """A budget of one chunk and all places; blocks for all requests at once."""

    def run(contest: Contest) -> Outcome:
        seats = len(contest.prompts)
        config = SchedulerConfig(
            max_num_batched_tokens=setting.chunk + seats, max_num_seqs=seats, max_model_len=contest.longest
        )
        free_memory()
        held_bytes = mx.get_active_memory()
        engine = setting.engine(config, contest.useful_tokens + seats)
        probe = ScheduleProbe(engine.scheduler)
        try:
            timings = serve(engine, contest.prompts)
        finally:
            engine.release()
        num_computed = sum(sum(step.values()) for step in probe.steps)
        return outcome(contest, timings, num_computed, mx.get_peak_memory() - held_bytes)

    return Entry("engine", run)
