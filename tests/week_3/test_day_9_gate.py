"""Day 3.9: drafts are verified where they pay: the rule, and what it learns from."""

import pytest
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import Draft, Prompt, SamplingParams

pytestmark = pytest.mark.task("3.9.7")


def gate_with(llm, fixed_s, row_s, accepted, num_drafted=4, request_id="a", **settings):
    """A gate that has seen steps of 1, 5 and 9 rows, and drafts with `accepted` tokens each."""
    gate = llm.DraftGate(**settings)
    for _ in range(40):
        for num_rows in (1, 5, 9):
            gate.observe_step(num_rows, fixed_s + row_s * num_rows)
    for each in accepted:
        gate.observe_draft(request_id, num_drafted, each)
    return gate


def wanted(gate, num_requests=1, num_drafted=4, request_id="a", times=100):
    """The share of `times` steps in which a draft is wanted."""
    verdicts = []
    for _ in range(times):
        gate.begin_step(num_requests)
        verdicts.append(gate.wants(request_id, num_drafted))
    return verdicts.count(True) / times


YES, NO = pytest.approx(1.0, abs=0.05), pytest.approx(0.0, abs=0.05)  # one or two steps in 100 try


@pytest.mark.parametrize("seen", [[], [5] * 50], ids=["no step", "steps of one size"])
def test_every_second_step_drafts_while_the_cost_of_a_row_is_unknown(llm, seen):
    gate = llm.DraftGate()
    for num_rows in seen:
        gate.observe_draft("a", 4, 0)
        gate.observe_step(num_rows, 1.0)
    verdicts = []
    for _ in range(6):
        gate.begin_step(2)
        verdicts.append([gate.wants("a", 4), gate.wants("b", 4)])
    assert verdicts == [[True] * 2, [False] * 2] * 3, "steps of two sizes tell what a row costs"


@pytest.mark.parametrize(
    ("fixed_s", "row_s", "num_requests", "num_accepted", "pays"),
    [
        (19.0, 1.0, 1, 1, True),  # a token costs 20, a draft of 4 adds 4
        (1.0, 1.0, 1, 1, False),  # 2 against 4
        (1.0, 1.0, 1, 3, True),  # 6 against 4
        (0.0, 1.0, 1, 4, False),  # rows cost as much as tokens: 4 against 4 is nothing gained
        (19.0, 1.0, 19, 1, False),  # a token of 19 requests costs 2, and 4 rows cost 4
        (19.0, 1.0, 19, 3, True),
        (8.0, 0.0, 1, 1, True),  # rows are free
        (8.0, 0.0, 1, 0, False),  # and yet nothing comes of it
    ],
)
def test_a_draft_pays_when_its_tokens_would_cost_more(llm, fixed_s, row_s, num_requests, num_accepted, pays):
    gate = gate_with(llm, fixed_s, row_s, [num_accepted] * 200)
    assert wanted(gate, num_requests) == (YES if pays else NO)


@pytest.mark.parametrize("num_drafted", [1, 2, 8])
def test_a_longer_draft_must_bring_more(llm, num_drafted):
    gate = gate_with(llm, 2.0, 1.0, [1] * 200, num_drafted)  # a token costs 3
    assert wanted(gate, num_drafted=num_drafted) == (YES if num_drafted < 3 else NO)


def test_a_request_is_judged_by_its_own_drafts(llm):
    gate = gate_with(llm, 3.0, 1.0, [])
    for _ in range(30):
        gate.observe_draft("quotes", 4, 4)
        gate.observe_draft("invents", 4, 0)
    assert wanted(gate, request_id="quotes") == YES and wanted(gate, request_id="invents") == NO


@pytest.mark.parametrize(("accepted", "pays"), [(0, False), (4, True)])
def test_a_new_request_is_taken_to_be_like_the_others(llm, accepted, pays):
    gate = gate_with(llm, 3.0, 1.0, [accepted] * 200, request_id="old")
    assert wanted(gate, request_id="new") == (YES if pays else NO)
    gate.observe_draft("new", 4, accepted)
    assert wanted(gate, request_id="new") == (YES if pays else NO), "also with its first draft"


def test_what_changes_is_noticed_within_twenty_drafts(llm):
    gate = gate_with(llm, 3.0, 1.0, [4] * 50)
    assert wanted(gate) == YES
    for _ in range(20):
        gate.observe_draft("a", 4, 0)
    assert wanted(gate) == NO
    for _ in range(20):
        gate.observe_draft("a", 4, 4)
    assert wanted(gate) == YES


def test_a_machine_that_becomes_busy_is_noticed(llm):
    gate = gate_with(llm, 19.0, 1.0, [1] * 50)
    assert wanted(gate) == YES
    for _ in range(200):
        for num_rows in (1, 5):
            gate.observe_step(num_rows, 10.0 * num_rows)
    assert wanted(gate) == NO, "a row now costs as much as a token"


def test_rows_that_cost_more_and_more_do_not_make_a_step_cost_less_than_nothing(llm):
    gate = llm.DraftGate()
    for _ in range(50):
        gate.observe_draft("a", 4, 1)
        gate.observe_step(5, 1.0)
        gate.observe_step(9, 10.0)  # by this line a step of one row would take -8 s
    for _ in range(200):
        for num_rows in (1, 5):
            gate.observe_step(num_rows, 19.0 + num_rows)
    assert wanted(gate) == YES, "a step of one row takes 20 s, and a draft of four adds 4 s"


@pytest.mark.parametrize("probe_every", [2, 8, 32])
@pytest.mark.parametrize("accepted", [0, 4])
def test_one_step_in_so_many_decides_the_other_way(llm, probe_every, accepted):
    gate = gate_with(llm, 3.0, 1.0, [accepted] * 50, probe_every=probe_every)
    expected = 1 / probe_every if accepted == 0 else 1 - 1 / probe_every
    assert wanted(gate, times=64) == expected


def test_all_requests_of_a_step_try_together(llm):
    gate = gate_with(llm, 3.0, 1.0, [0] * 50, probe_every=4)
    for _ in range(50):
        gate.observe_draft("b", 4, 0)
    verdicts = []
    for _ in range(8):
        gate.begin_step(2)
        verdicts.append([gate.wants("a", 4), gate.wants("b", 4)])
    assert verdicts == ([[False] * 2] * 3 + [[True] * 2]) * 2


def test_one_pause_of_the_machine_changes_little(llm):
    gate = gate_with(llm, 1.0, 1.0, [1] * 50)
    gate.observe_step(1, 10_000.0)
    assert wanted(gate) == NO, "one step of a row was interrupted: a row is no cheaper than before"


def test_times_that_fall_with_rows_make_rows_free_and_no_more(llm):
    gate = llm.DraftGate()
    for _ in range(50):
        gate.observe_step(1, 3.0)
        gate.observe_step(5, 2.0)
        gate.observe_draft("a", 4, 0)
    assert wanted(gate) == NO, "nothing is accepted, so nothing is gained"


def test_a_forgotten_request_is_a_new_one(llm):
    gate = gate_with(llm, 3.0, 1.0, [4] * 200, request_id="old")
    for _ in range(20):
        gate.observe_draft("a", 4, 0)
    assert wanted(gate) == NO
    for _ in range(100):
        gate.observe_draft("old", 4, 4)
    gate.forget("a")
    gate.forget("a")
    assert wanted(gate) == YES


def test_an_empty_draft_teaches_nothing(llm):
    gate = gate_with(llm, 3.0, 1.0, [4] * 50)
    for _ in range(100):
        gate.observe_draft("a", 0, 0)
    assert wanted(gate) == YES


@pytest.mark.parametrize("probe_every", [1, 0, -1])
def test_not_every_step_can_decide_the_other_way(llm, probe_every):
    with pytest.raises(ValueError):
        llm.DraftGate(probe_every)


def stream(gate, num_tokens, fixed_s, row_s, num_accepted, num_drafted=8):
    """One request decodes: the share of steps with drafts, and the speed beside one that never drafts."""
    made = seconds = num_steps = num_with_draft = 0
    while made < num_tokens:
        gate.begin_step(1)
        num_rows = 1
        if gate.wants("a", num_drafted):
            gate.observe_draft("a", num_drafted, num_accepted)
            num_with_draft, num_rows, made = num_with_draft + 1, 1 + num_drafted, made + num_accepted
        took_s = fixed_s + row_s * num_rows
        gate.observe_step(num_rows, took_s)
        made, seconds, num_steps = made + 1, seconds + took_s, num_steps + 1
    return num_with_draft / num_steps, made * (fixed_s + row_s) / seconds


MEMORY_BOUND, BUSY = (1.0, 0.2), (0.0, 1.2)  # a row rides along nearly free, or costs as much as a token


@pytest.mark.parametrize(
    "phases",
    [
        [(*MEMORY_BOUND, 8), (*MEMORY_BOUND, 0), (*MEMORY_BOUND, 8), (*MEMORY_BOUND, 0)],
        [(*MEMORY_BOUND, 3), (*BUSY, 3), (*MEMORY_BOUND, 3), (*BUSY, 3)],
    ],
    ids=["acceptance", "times"],
)
def test_drafts_go_off_and_on_again(llm, phases):
    gate = llm.DraftGate()
    for number, phase in enumerate(phases):
        stream(gate, 300, *phase)  # to notice
        share, speed = stream(gate, 300, *phase)
        if number % 2 == 0:
            assert share > 0.9 and speed > 1.4, f"phase {number}: drafts pay, and are not all verified"
        else:
            assert share < 0.1, f"phase {number}: drafts do not pay"


def test_a_stream_whose_drafts_fail_loses_little(llm):
    gate = llm.DraftGate()
    stream(gate, 64, *MEMORY_BOUND, 0)
    _, speed = stream(gate, 640, *MEMORY_BOUND, 0)
    assert 0.97 <= speed < 1, "what is tried now and then takes 3 % of the time at most"


# The engine asks which drafts pay, and its answers stay the same


class Machine:
    """A model whose passes take `fixed_s` and `row_s` for each row, by a clock of its own."""

    def __init__(self, model, fixed_s, row_s):
        self.model, self.fixed_s, self.row_s, self.now_s = model, fixed_s, row_s, 0.0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, tokens, *args, **kwargs):
        self.now_s += self.fixed_s + self.row_s * tokens.size
        return self.model(tokens, *args, **kwargs)

    def clock(self):
        return self.now_s


class Prompter:
    """Drafts four tokens of the answers: right ones, or wrong ones, as `is_right` says of a position."""

    def __init__(self, answers, is_right):
        self.answers, self.is_right = answers, is_right

    def propose(self, token_ids, request_id=None, sampler=None):
        answer, known = self.answers[request_id], len(token_ids)
        right = self.is_right(request_id, known)
        return Draft(tuple(token if right else (token + 1) % 256 for token in answer[known : known + 4]))

    def forget(self, request_id):
        pass


def run(llm, fixed_s, row_s, is_right, num_requests=1, max_tokens=80, gate=True):
    """Counters of an engine that has answered; its answers are those of an engine without drafts."""
    model, sampling = toy_model(llm), SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 12).tolist(), sampling) for i in range(num_requests)]
    plain = serve(make_engine(llm, model), prompts)
    answers = {str(i): [*prompts[i].content, *plain[i].token_ids] for i in range(num_requests)}
    machine = Machine(model, fixed_s, row_s)
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


def test_the_engine_goes_on_drafting_what_is_accepted(llm):
    stats = run(llm, 2.0, 1.0, lambda name, known: True)
    assert stats.num_accepted_tokens > 60 and stats.acceptance_rate == 1.0


def test_drafts_that_became_right_are_found_again(llm):
    stats = run(llm, 2.0, 1.0, lambda name, known: known > 80, max_tokens=240)
    assert stats.num_accepted_tokens > 60


def test_the_engine_drafts_for_one_request_and_not_for_the_other(llm):
    stats = run(llm, 4.0, 1.0, lambda name, known: name == "0", num_requests=2)
    assert stats.num_accepted_tokens > 60
    assert stats.num_draft_tokens - stats.num_accepted_tokens < 60


def test_steps_with_prompts_teach_nothing(llm):
    seen = []

    class Listening:
        def begin_step(self, num_requests):
            pass

        def wants(self, request_id, num_draft_tokens):
            return False

        def observe_draft(self, *args):
            raise AssertionError("no draft was verified")

        def observe_step(self, num_rows, seconds):
            seen.append((num_rows, seconds))

        def forget(self, request_id):
            seen.append(request_id)

    model, sampling = toy_model(llm), SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 12).tolist(), sampling) for i in range(2)]
    machine = Machine(model, 2.0, 1.0)
    proposer = Prompter({"0": [0] * 40, "1": [0] * 40}, lambda name, known: True)
    engine = make_engine(llm, machine, proposer=proposer, draft_gate=Listening(), clock=machine.clock)
    serve(engine, prompts, arrival_steps={1: 3})
    alone, together = (1, 3.0), (2, 4.0)
    # One step computes the first prompt and one the second beside a decode: neither is a step of decodes.
    assert seen == [alone] * 2 + [together] * 2 + ["0"] + [alone] * 3 + ["1"]


def test_a_gate_is_asked_for_every_draft_of_a_step(llm):
    asked = []

    class Listening:
        def begin_step(self, num_requests):
            asked.append(num_requests)
            self.known = set()

        def wants(self, request_id, num_draft_tokens):
            asked.append((request_id, num_draft_tokens))
            is_first = request_id not in self.known
            self.known.add(request_id)
            return is_first

        def observe_draft(self, *args):
            pass

        observe_step = forget = observe_draft

    class Fixed(Prompter):
        def propose(self, token_ids, request_id=None, sampler=None):
            return Draft((7,) * (len(token_ids) % 3))

    model, sampling = toy_model(llm), SamplingParams(max_tokens=5, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 12).tolist(), sampling) for i in range(2)]
    serve(make_engine(llm, model, proposer=Fixed({}, None), draft_gate=Listening()), prompts)
    # Both have 13 tokens after their prompts; an empty draft is none, and the last token needs none.
    first = [2, ("0", 1), ("0", 1), ("1", 1), ("1", 1)]
    longer, empty = [2, ("0", 1), ("0", 2), ("1", 1), ("1", 2)], [2, ("0", 1), ("1", 1)]
    assert asked == [0, *first, *longer, *empty, 2]


def test_a_draft_that_is_not_wanted_is_not_made(llm):
    class Refusing(llm.DraftGate):
        def wants(self, request_id, num_draft_tokens):
            return False

    class Counting(Prompter):
        num_asked = 0

        def propose(self, token_ids, request_id=None, sampler=None):
            self.num_asked += 1
            return Draft((7,))

    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    proposer = Counting({}, None)
    engine = make_engine(llm, toy_model(llm), proposer=proposer, draft_gate=Refusing())
    serve(engine, [Prompt(random_tokens(0, 12).tolist(), sampling)])
    assert proposer.num_asked == 0, "a lookup, or a draft model, takes time also where no draft pays"
