"""Day 3.9: the engine asks which drafts pay, and its answers stay the same."""

import pytest
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import Draft, Prompt, SamplingParams

pytestmark = pytest.mark.task("3.9.7")


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
