"""bench-engine --experiment drafts: what it counts, what it compares, and that it sees a changed answer."""

from types import SimpleNamespace

import pytest

from benchmarks.engine import drafts as module
from benchmarks.engine.drafts import GATED, INVENTED, PLAIN, QUOTED, Side, Text, drafts
from tiny_llm_lab.types import EngineOutput, SamplingParams

QUESTION = Text(QUOTED, ["Where?"], SamplingParams())
Step = tuple[list[int], int, int, float]


class Scripted:
    """An engine that answers every prompt with the same steps, each (tokens, drafted, accepted, seconds)."""

    def __init__(self, *steps, reason="stop", has_stats=True):
        self.steps, self.reason, self.left, self.now_s = steps, reason, 0, 0.0
        stats = SimpleNamespace(num_draft_tokens=0, num_accepted_tokens=0)
        self.core = self
        self.spec_stats = stats if has_stats else None

    def add(self, *_):
        self.left = len(self.steps)

    @property
    def has_requests(self):
        return self.left > 0

    def step(self):
        tokens, drafted, accepted, seconds = self.steps[-self.left]
        self.left -= 1
        self.now_s += seconds
        if self.spec_stats:
            self.spec_stats.num_draft_tokens += drafted
            self.spec_stats.num_accepted_tokens += accepted
        done = None if self.left else SimpleNamespace(finish_reason=self.reason)
        return [EngineOutput("0", tuple(tokens), "", done)]

    @property
    def clocks(self):
        """The second one is twice as fast."""
        return [lambda: self.now_s, lambda: 2 * self.now_s]


PROMPT = ([], 0, 0, 50.0), ([7], 0, 0, 50.0)  # a prompt in two chunks, and the first token
DRAFTED = Scripted(*PROMPT, ([8, 9], 4, 1, 2.0), ([3], 0, 0, 1.0), ([4, 5], 2, 2, 2.0))


def metrics(side):
    return {key: list(samples) for key, samples in side.row(QUESTION).samples.items()}


def test_decodes_count_from_the_first_token_on_and_the_end_is_a_token():
    side = Side("k = 4", DRAFTED)
    for number in (-1, 0, 0):
        side.serve(QUESTION, 0, number, DRAFTED.clocks)
    # Two answers of 5 tokens and an end behind the first token, in 3 steps of 5 s together; 3 of 6 accepted.
    assert metrics(side) == {
        "tokens_per_s": [12 / 10],
        "tokens_per_cpu_s": [12 / 20],
        "tokens_per_step": [12 / 6],
        "rows_per_step": [1 + 12 / 6],
        "acceptance": [0.5],
    }
    assert side.answers == {0: {(7, 8, 9, 3, 4, 5)}}


def test_without_drafts_there_is_no_acceptance_and_a_cut_answer_has_no_end():
    engine = Scripted(*PROMPT, ([8], 0, 0, 4.0), reason="length", has_stats=False)
    side = Side(PLAIN, engine)
    side.serve(QUESTION, 0, 0, engine.clocks)
    assert metrics(side) == {
        "tokens_per_s": [1 / 4],
        "tokens_per_cpu_s": [1 / 8],
        "tokens_per_step": [1.0],
        "rows_per_step": [1.0],
        "acceptance": [None],
    }


@pytest.fixture
def scripted(monkeypatch):
    """Runs the experiment on engines made by name, which share a clock."""

    def run(texts, **engines):
        monkeypatch.setattr(module, "texts_of", lambda config: [Text(name, ["?"] * 2, SamplingParams())
                                                                 for name in texts])  # fmt: skip
        sides = lambda *_: [Side(name.replace("_", GATED), each) for name, each in engines.items()]  # noqa: E731
        monkeypatch.setattr(module, "sides_of", sides)
        config = SimpleNamespace(rounds=3, context=512)
        return drafts(config, [lambda: sum(each.now_s for each in engines.values())] * 2)

    return run


def test_each_side_is_compared_with_no_drafts_and_the_gate_has_aims(scripted):
    slow = Scripted(([7], 0, 0, 1.0), ([8], 0, 0, 2.0), ([9], 0, 0, 2.0), ([], 0, 0, 2.0))
    fast, gated = (Scripted(([7], 0, 0, 1.0), ([8, 9], 2, 2, 3.0)) for _ in range(2))
    section = scripted([QUOTED, INVENTED], plain=slow, k=fast, k_=gated)
    assert [row.name for row in section.rows] == [
        f"{text}, {name}" for text in (QUOTED, INVENTED) for name in ("plain", "k", "k, gated")
    ]
    found = [(ratio.value, ratio.aim.at_least, ratio.is_met) for ratio in section.ratios if ratio]
    quoted, invented = [(2.0, None, None), (2.0, 1.8, True)], [(2.0, None, None), (2.0, 0.97, True)]
    assert found == quoted * 2 + invented * 2, "by both clocks"
    assert section.notes[0] == "Answers are the same as without drafts."
    assert section.data == {"differ": []}


@pytest.mark.parametrize("second", [[9], [8, 8]])
def test_an_answer_that_a_draft_changes_is_named(scripted, second):
    plain, other = (Scripted(([7], 0, 0, 1.0), (tokens, 0, 0, 1.0)) for tokens in ([8], second))
    section = scripted([QUOTED], plain=plain, same=plain, other=other)
    assert section.notes[0] == f"Answers DIFFER with {QUOTED}, other."
    assert section.data == {"differ": [f"{QUOTED}, other"]}


def test_an_answer_that_is_not_the_same_each_time_is_named(scripted):
    class Fickle(Scripted):
        def add(self, *_):
            super().add()
            self.steps = (([7], 0, 0, 1.0), ([int(self.now_s)], 0, 0, 1.0))

    plain = Scripted(([7], 0, 0, 1.0), ([0], 0, 0, 1.0))
    section = scripted([QUOTED], plain=plain, other=Fickle(*plain.steps))
    assert section.data == {"differ": [f"{QUOTED}, other"]}
