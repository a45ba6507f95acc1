"""The traffics of the arena: what arrives, on which machine, and which latencies count as good."""

from collections.abc import Mapping
from typing import Final

from tiny_llm_lab.measure.simulate.setting import Setting

# The rates are near what the best static budget can serve: far below it every policy is good, and far above
# it every policy is late.
TRAFFICS: Final[Mapping[str, Setting]] = {
    "mixed": Setting(requests=600, rate=1.8, lengths="sharegpt", seed=1),
    "bursty": Setting(requests=1000, rate=18.0, burstiness=0.2, lengths="chat", seed=2),
    "uniform": Setting(requests=600, rate=2.1, lengths="fixed:4096:128", seed=3),
    "documents": Setting(requests=600, rate=2.0, lengths="documents", seed=4),
}
BUDGETS: Final = ("128", "256", "384", "512")
USUAL: Final = Setting.budget  # of fcfs and fair
