"""Day 3.9: drafts are as long as they pay: the rule, and what it learns from."""

import pytest
from tests.helpers.draft_histories import History, seconds_of
from tests.helpers.fake_clock import FakeClock
from tests.helpers.passes import Passes
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import Draft, Prompt, Proposer, SamplingParams

pytestmark = pytest.mark.task("3.9.7")
NAMES = "abcdefgh"


class Machine:
    """A gate and the times of a machine: a step of r rows takes a + b r, a pass of the drafts c + d r."""

    def __init__(self, llm, a, b, c=0.0, d=0.0):
        self.gate, self.costs = llm.DraftGate(), (a, b, c, d)

    def step(self, lengths, accepted):
        """One step with drafts of these lengths; `accepted`: how many tokens of each would be right."""
        a, b, c, d = self.costs
        num_rows, num_passes = sum(lengths.values()), max(lengths.values(), default=0)
        if num_passes:
            self.gate.observe_drafting(num_passes, num_rows, c * num_passes + d * num_rows)
        self.gate.observe_step(len(lengths) + num_rows, a + b * (len(lengths) + num_rows))
        for name, length in lengths.items():
            self.gate.observe_draft(name, length, min(length, accepted[name]))

    def teach(self, rates, most=4, times=40):
        """Steps of all requests, `rates` of whose draft tokens are right; drafts have all lengths."""
        names = NAMES[: len(rates)]
        due = dict.fromkeys(names, 0.0)
        for at in range(times * (most + 1)):
            self.gate.begin_step(len(names))
            right = {}
            for name, rate in zip(names, rates, strict=True):
                # By turns and not by chance: of each position's tokens the same part is right.
                wanted = [due.get((name, j), 0.5) for j in range(most)]
                right[name] = 0
                for j in range(most):
                    due[name, j] = wanted[j] + rate
                    if due[name, j] < 1:
                        break
                    due[name, j] -= 1
                    right[name] += 1
            self.step(dict.fromkeys(names, most if at % 3 else at % most), right)

    def lengths(self, num, most=8):
        self.gate.begin_step(num)
        return {name: self.gate.length(name, most) for name in NAMES[:num]}


def best_length(a, b, c, d, rate, num, most):
    """By trying all lengths: the most tokens a second of one of `num` requests that are all alike."""
    token_s, draft_s = (a + b * num) / num, b + d + c / num
    expected = [sum(rate**j for j in range(1, k + 1)) for k in range(most + 1)]
    speeds = [(1 + expected[k]) / (token_s + k * draft_s) for k in range(most + 1)]
    pays = [k for k in range(most + 1) if expected[k] * token_s - k * draft_s >= 0.05 * token_s]
    return speeds, max([0, *pays], key=speeds.__getitem__)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize(
    ("a", "b", "c", "d", "num"),
    [
        (20.0, 0.1, 0.0, 0.0, 1),
        (20.0, 4.0, 0.0, 0.0, 1),
        (20.0, 10.0, 0.0, 0.0, 1),
        (20.0, 1.0, 0.0, 0.0, 8),
        (20.0, 0.4, 2.0, 0.1, 1),
        (20.0, 0.4, 9.0, 0.1, 1),
        (20.0, 0.4, 9.0, 0.1, 6),
        (20.0, 0.0, 4.0, 0.0, 4),
    ],
)
def test_a_draft_is_as_long_as_it_pays(llm, a, b, c, d, num, rate):
    machine = Machine(llm, a, b, c, d)
    machine.teach([rate] * num)
    speeds, best = best_length(a, b, c, d, rate, num, 4)
    for name, length in machine.lengths(num, 4).items():
        # Rates are learned from the last ten drafts: a neighbour that is nearly as good is right as well.
        assert speeds[length] >= 0.88 * speeds[best], f"{name}: {length} and not {best}; speeds {speeds}"


def test_the_first_draft_of_a_request_is_short(llm):
    machine = Machine(llm, 20.0, 0.1)
    machine.teach([1.0])
    assert machine.lengths(2)["a"] == 8 and machine.lengths(2)["b"] == 1
    machine.step({"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert machine.lengths(2)["b"] > 4, "it is then taken to be like the others"


def test_asking_changes_nothing(llm):
    asked, silent = Machine(llm, 20.0, 3.0, 2.0), Machine(llm, 20.0, 3.0, 2.0)
    for at in range(60):
        for machine in (asked, silent):
            machine.gate.begin_step(1)
        found = [asked.gate.length("a", 4) for _ in range(3)]
        assert found == [silent.gate.length("a", 4)] * 3
        for machine in (asked, silent):
            machine.step({"a": found[0]}, {"a": at % 3})


def test_a_forgotten_request_is_a_new_one(llm):
    machine = Machine(llm, 20.0, 4.0)
    machine.teach([1.0, 0.0])
    machine.gate.forget("b")
    machine.gate.forget("b")
    assert machine.lengths(2) == {"a": 8, "b": 1}


def test_no_draft_is_longer_than_most(llm):
    machine = Machine(llm, 20.0, 0.1)
    machine.teach([1.0])
    assert [machine.lengths(1, most)["a"] for most in range(6)] == list(range(6))


def test_a_pass_is_shared_again_by_all_who_gain(llm):
    """Alone, no draft pays: a pass costs more than a token. Four share it, and all gain."""
    machine = Machine(llm, 20.0, 0.0, 7.0)
    machine.teach([0.9] * 4)
    assert all(machine.lengths(4).values())
    machine.step({"a": 1, "b": 0, "c": 0, "d": 0}, dict.fromkeys(NAMES, 1))
    assert all(machine.lengths(4).values()), "one drafted alone, and yet all agree"


def test_all_requests_of_a_step_probe_together(llm):
    machine = Machine(llm, 20.0, 0.1, 9.0)
    machine.teach([0.0] * 3, most=1, times=4)
    steps = []
    for _ in range(200):
        steps.append(machine.lengths(3))
        machine.step(steps[-1], dict.fromkeys(NAMES, 0))
    assert {tuple(each.values()) for each in steps[60:]} == {(0, 0, 0), (1, 1, 1)}


@pytest.mark.parametrize("costs", [(20.0, 1.0), (20.0, 4.0), (20.0, 0.5, 5.0), (20.0, 0.1, 4.0, 0.2)])
@pytest.mark.parametrize("num", [1, 4])
def test_text_that_turns_predictable_gets_drafts_within_thirty_tokens(llm, costs, num):
    machine = Machine(llm, *costs)
    wrong, right = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 8)
    for _ in range(403):
        machine.step(machine.lengths(num), wrong)
    for _ in range(30):
        lengths = machine.lengths(num)
        machine.step(lengths, right)
        if min(lengths.values()):
            break
    assert min(lengths.values()) > 0, "a probe within 30 tokens"
    for _ in range(30):
        machine.step(machine.lengths(num), right)
    assert min(machine.lengths(num).values()) > 1, "and then longer drafts"


@pytest.mark.parametrize("num_tokens", [500, 2000])
@pytest.mark.parametrize(
    "costs",
    [(20.0, 0.1), (20.0, 1.0), (20.0, 10.0), (20.0, 0.5, 5.0), (20.0, 8.0, 10.0, 1.0), (20.0, 0.0, 10.0)],
)
@pytest.mark.parametrize("num", [1, 3, 8])
def test_text_that_is_guessed_badly_pays_two_percent_at_most(llm, costs, num, num_tokens):
    machine = Machine(llm, *costs)
    a, b, c, d = machine.costs
    extra_s = 0.0
    for _ in range(num_tokens):
        lengths = machine.lengths(num, 4)
        extra_s += (b + d) * sum(lengths.values()) + c * max(lengths.values())
        machine.step(lengths, dict.fromkeys(NAMES, 0))
    assert extra_s <= 0.02 * num_tokens * (a + b * num)


def test_a_machine_that_becomes_busy_is_noticed(llm):
    machine = Machine(llm, 20.0, 0.5)
    machine.teach([0.5])
    assert machine.lengths(1)["a"] > 0
    machine.costs = 1.0, 15.0, 0.0, 0.0
    machine.teach([0.5], times=100)
    machine.lengths(1)
    assert machine.lengths(1)["a"] == 0, "a row now costs as much as a token"


@pytest.mark.parametrize("part", range(10))
def test_no_history_is_much_slower_than_the_better_of_always_and_never(llm, part):
    """Never below 0.97 of the better one, apart from what it takes to notice a change.

    A change of acceptance is seen once drafts were tried: three tokens' time is allowed for each, and eight
    for a machine of which nothing is known. On average the gate is faster than both.
    """
    beside_always, beside_never, seeds = 0.0, 0.0, range(part, 1000, 30)
    for seed in seeds:
        history = History(seed)
        always, never = (seconds_of(history, each) for each in ("always", "never"))
        gated = seconds_of(history, llm.DraftGate())
        # Requests end at different tokens, so a history ends a draft later or earlier.
        allowed_s = min(always.a_token_s, never.a_token_s) / 0.97 + gated.noticing_s / gated.num_tokens
        assert gated.a_token_s <= allowed_s, f"history {seed}: {history.describe()}"
        beside_always += always.a_token_s / gated.a_token_s / len(seeds)
        beside_never += never.a_token_s / gated.a_token_s / len(seeds)
    assert beside_always > 1.1 and beside_never > 1.1


# The engine asks how long drafts pay, and its answers stay the same


class Prompter(Proposer):
    """Drafts four tokens of the answers: right ones, or wrong ones, as `is_right` says of a position."""

    def __init__(self, answers, is_right):
        self.answers, self.is_right = answers, is_right

    def look_up(self, token_ids, request_id=None):
        answer, known = self.answers[request_id], len(token_ids)
        right = self.is_right(request_id, known)
        return Draft(tuple(token if right else (token + 1) % 256 for token in answer[known : known + 4]))


def run(llm, fixed_s, row_s, is_right, num_requests=1, max_tokens=80, gate=True):
    """Counters of an engine that has answered; its answers are those of an engine without drafts."""
    model, sampling = toy_model(llm), SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 12).tolist(), sampling) for i in range(num_requests)]
    plain = serve(make_engine(llm, model), prompts)
    answers = {str(i): [*prompts[i].content, *plain[i].token_ids] for i in range(num_requests)}
    machine = Passes(model, FakeClock(), lambda num_rows: fixed_s + row_s * num_rows)
    options = {"draft_gate": llm.DraftGate()} if gate else {}
    proposer = Prompter(answers, is_right)
    engine = make_engine(llm, machine, proposer=proposer, clock=machine.clock, **options)
    served = serve(engine, prompts)
    assert {i: each.token_ids for i, each in served.items()} == {
        i: each.token_ids for i, each in plain.items()
    }
    return engine.core.spec_stats


def test_the_engine_stops_drafting_what_is_never_accepted(llm):
    assert run(llm, 2.0, 1.0, lambda name, known: False).num_drafts < 20
    assert run(llm, 2.0, 1.0, lambda name, known: False, gate=False).num_drafts > 70, "or this shows nothing"


def test_drafts_that_became_right_are_found_again(llm):
    stats = run(llm, 2.0, 1.0, lambda name, known: known > 80, max_tokens=240)
    assert stats.num_accepted_tokens > 60


def test_the_engine_drafts_for_one_request_and_not_for_the_other(llm):
    stats = run(llm, 4.0, 1.0, lambda name, known: name == "0", num_requests=2)
    assert stats.num_accepted_tokens > 60
    assert stats.num_draft_tokens - stats.num_accepted_tokens < 60


class Listener:
    """A gate that wants `num` tokens of every draft, and keeps what it is told."""

    def __init__(self, num):
        self.num, self.log, self.drafting, self.steps = num, [], [], []

    def begin_step(self, num_requests):
        self.log.append(num_requests)

    def length(self, request_id, most):
        self.log.append((request_id, most))
        return min(self.num, most)

    def observe_draft(self, request_id, num_draft_tokens, num_accepted_tokens):
        self.log.append((request_id, num_draft_tokens, num_accepted_tokens))
        return 0.0

    def observe_step(self, num_rows, seconds):
        self.steps.append((num_rows, seconds))

    def observe_drafting(self, num_passes, num_rows, seconds):
        self.drafting.append((num_rows, seconds))

    forget = begin_step


def test_steps_with_prompts_teach_nothing(llm):
    model, sampling = toy_model(llm), SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 12).tolist(), sampling) for i in range(2)]
    machine = Passes(model, FakeClock(), lambda num_rows: 2.0 + num_rows)
    proposer = Prompter({"0": [0] * 40, "1": [0] * 40}, lambda name, known: True)
    gate = Listener(0)
    engine = make_engine(llm, machine, proposer=proposer, draft_gate=gate, clock=machine.clock)
    serve(engine, prompts, arrival_steps={1: 3})
    alone, together = (1, 3.0), (2, 4.0)
    # One step computes the first prompt and one the second beside a decode: neither is a step of decodes.
    assert gate.steps == [alone] * 2 + [together] * 2 + [alone] * 3
    assert [gate.log.count((name, 0, 0)) for name in "01"] == [5, 5], "of 6 tokens the first is no decode"


class Slow(Prompter):
    """A draft of three tokens takes 30 seconds on the model's clock."""

    clock, num_asked = None, 0

    def look_up(self, token_ids, request_id=None):
        self.num_asked += 1
        self.clock.now += 30
        return Draft((7, 7, 300))


def listened(llm, num, **options):
    """A gate that wants `num` tokens, with what it heard, and the asked proposer."""
    gate, proposer = Listener(num), Slow({}, None)
    machine = Passes(toy_model(llm), FakeClock(), lambda num_rows: 2.0 + num_rows)
    proposer.clock = machine.clock
    options |= {"proposer": proposer, "draft_gate": gate, "clock": machine.clock}
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    serve(make_engine(llm, machine, **options), [Prompt(random_tokens(0, 12).tolist(), sampling)])
    return gate, proposer


def test_a_gate_is_asked_before_a_draft_and_told_after_every_decode(llm):
    gate, proposer = listened(llm, 2)
    told = [each for each in gate.log if each in ((("0", 2, n)) for n in range(3))]
    assert gate.log[:3] == [0, 1, ("0", 3)], "the last of five tokens needs no draft, and the first has come"
    assert told and all(rows == 3 and seconds == 5.0 for rows, seconds in gate.steps[: len(told)])
    assert [seconds for _, seconds in gate.drafting] == [30.0] * proposer.num_asked, (
        "and not in the steps' times"
    )


def test_a_draft_of_length_0_is_not_made(llm):
    gate, proposer = listened(llm, 0)
    assert proposer.num_asked == 0, "a lookup, or a draft model, takes time also where no draft pays"
    assert gate.log.count(("0", 0, 0)) == 4 and not gate.drafting
    assert gate.steps == [(1, 3.0)] * 4
    ahead = listened(llm, 0, async_scheduling=True)[0].steps
    assert len(ahead) == 4 and max(ahead) == (1, 3.0), "a step begins at the end of the one in front"
