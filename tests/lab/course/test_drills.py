"""The drills: every hidden mistake shows in what its drill says, and an answer is graded and remembered."""

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import ge, gt, lt, ne
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.helpers.fakes import FakeClock

from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.drills import command
from tiny_llm_lab.course.drills.command import body_of, key_of, load_drills, write_copy
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import load_record
from tiny_llm_lab.serving.async_engine.listener import AddedRequest
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics, Totals
from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.types import Completion, StepPlan
from tiny_llm_lab.types.packages import PACKAGES

_LATER = 20  # steps
_MOST = 4000  # steps of a load; a healthy server takes a third


@dataclass
class Seen:
    """What a drill shows. A step takes a second of its clock."""

    totals: Totals = field(default_factory=Totals)
    answers: dict[str, Completion] = field(default_factory=dict)  # by name, in the order of their ends
    plans: list[StepPlan] = field(default_factory=list)
    most: dict[str, float] = field(default_factory=dict)  # the largest value that a gauge had after a step

    @property
    def texts(self):
        return {name: done.text for name, done in sorted(self.answers.items())}

    @property
    def largest_step(self):
        return max(plan.total_num_scheduled_tokens for plan in self.plans)

    def seconds(self, name):
        """The end-to-end time of an answer."""
        timing = self.answers[name].timing
        return timing.token_s[-1] - timing.arrival_s


@contextmanager
def imported(folder, name):
    """The package `name` in `folder` is what "ref" means."""
    sys.path.insert(0, str(folder))
    try:
        with patch.dict(PACKAGES, {"ref": name}):
            importlib.import_module(name)
            yield
    finally:
        sys.path.remove(str(folder))
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]


def observe(drill):
    """Send the drill's load to an engine with the drill's flags; "ref" is what is imported now."""
    served = _Served(drill)
    for number, wave in enumerate(drill.load):
        now = 0
        for entry in sorted(wave, key=lambda entry: entry.get("later", 0)):
            later, now = entry.get("later", 0) - now, entry.get("later", 0)
            served.step(_LATER * later)
            served.add(entry, f"{number}")
        served.step(_MOST)
    assert not served.engine.has_requests, "it does not end"
    served.seen.totals = served.metrics.totals()
    served.engine.release()
    return served.seen


class _Served:
    def __init__(self, drill):
        args = COMMANDS.parser("serve").parse_args(drill.serve_arguments)
        self.seen, self.metrics, self.clock = Seen(), EngineMetrics(), FakeClock()
        loaded, self.engine = load_and_build(model_settings(args), self._stepped)
        self.tokenizer = loaded.checkpoint.tokenizer
        core = self.engine.core
        core.options = replace(core.options, clock=self.clock)
        self.reports = Reports(self.engine)
        self.metrics.started(facts_of(self.engine, loaded.model.config))

    def _stepped(self, plan, stats):
        self.metrics.stepped(self.reports.step(plan, stats))
        self.seen.plans.append(plan)
        totals = self.metrics.totals()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.seen.most[name] = max(self.seen.most.get(name, 0), getattr(totals, name))

    def add(self, entry, wave):
        body = CompletionRequest(**body_of(entry))
        sampling = body.sampling_params({}, max_tokens=body.max_tokens, logprobs=body.logprobs)
        for number, prompt in enumerate(body.prompts):
            name = f"{wave} {entry['name']} {number}"
            tokens = self.tokenizer.encode(prompt)
            self.engine.add(name, tokens, sampling, priority=body.priority or 0)
            told = AddedRequest(name, len(tokens), sampling, self.clock.now)
            self.metrics.added(told, self.reports.queues())

    def step(self, count):
        while self.engine.has_requests and count:
            count -= 1
            self.clock.now += 1
            outputs = self.engine.step()
            self.metrics.produced(outputs)
            for each in outputs:
                if each.completion is not None:
                    self.seen.answers[each.request_id] = each.completion


COURSE = load_course()
DRILLS = load_drills(COURSE)
NUMBERS = range(1, len(DRILLS.drills) + 1)


def total(name):
    return lambda seen: getattr(seen.totals, name)


def most(name):
    return lambda seen: seen.most[name]


def seconds(name):
    return lambda seen: seen.seconds(name)


# What the mistake does to what its drill tells you to look at.
SHOWS = {
    1: [(lambda seen: seen.largest_step, gt), (seconds("0 document 0"), lt)],
    2: [(lambda seen: seen.largest_step > 64, gt)],
    3: [(lambda seen: list(seen.answers), ne), (seconds("0 user of priority 0 0"), gt)],
    4: [(total("prefix_cache_queries"), gt)],
    5: [(most("num_requests_running"), lt), (seconds("0 chats 7"), gt)],
    6: [(most("num_requests_waiting"), gt), (most("num_requests_running"), lt)],
    7: [(total("prompt_tokens_computed"), gt), (total("prefix_cache_hits"), lt)],
    8: [(total("prefix_cache_hits"), lt)],
    9: [(lambda seen: list(seen.answers).index("0 2 long 0"), gt), (total("num_preemptions"), ge)],
    10: [(seconds("0 long prompt 0"), gt)],
    11: [(lambda seen: seen.totals.kv_cache_usage_perc == 1, gt)],
    12: [(lambda seen: seen.texts["1 test among stories 0"], ne)],
    13: [(seconds("0 short request 0"), gt)],
    14: [(lambda seen: seen.totals.request_success["length"], gt)],
    15: [(total("num_preemptions"), gt), (total("prompt_tokens_computed"), gt)],
    16: [(lambda seen: seen.texts["0 story of seed 7 0"] == seen.texts["1 seed 7 again 0"], lt)],
    17: [(lambda seen: max(seen.answers["0 answer 0"].timing.itl_s), gt)],
    18: [(total("spec_decode_num_accepted_tokens"), lt)],
    19: [(total("generation_tokens"), gt)],
    20: [(most("num_requests_running"), lt)],
}


def shows(number, wrong, healthy):
    return all(differs(measured(wrong), measured(healthy)) for measured, differs in SHOWS[number])


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What a drill shows with the mistake of a key; without one where that is ""."""
    monkeypatch.setenv("TINY_LLM_KERNELS", "auto")  # as a learner's server: on MLX alone it takes minutes

    def seen(drill, key):
        if not key:
            return observe(drill)
        name = f"drill_{key}"
        write_copy(COURSE, DRILLS.mistakes[key], tmp_path / name)
        with imported(tmp_path, name):
            return observe(drill)

    return seen


@pytest.mark.long
@pytest.mark.parametrize("number", NUMBERS)
def test_the_mistake_shows_and_none_of_the_others(number, seen):
    drill = DRILLS.drill(number)
    healthy, wrong = seen(drill, ""), seen(drill, drill.mistake)
    assert shows(number, wrong, healthy)
    assert wrong.answers.keys() == healthy.answers.keys(), "nothing crashes"
    for other in drill.others:
        with suppress(ValueError):  # of a step that fails, which shows at once
            assert not shows(number, seen(drill, other), healthy), DRILLS.says(other)


def test_each_drill_is_complete():
    assert len(DRILLS.drills) == 20 == len({drill.mistake for drill in DRILLS.drills}) == len(SHOWS)
    assert set(DRILLS.reasons) == {drill.mistake for drill in DRILLS.drills}
    assert len({key_of(mistake) for mistake in COURSE.mistakes()}) == len(COURSE.mistakes())
    for drill in DRILLS.drills:
        assert len(drill.choices) == 5 and 3 <= len(drill.look) <= 4 and drill.complaint
        model_settings(COMMANDS.parser("serve").parse_args(drill.serve_arguments))  # refuses wrong flags


def test_the_order_of_answers_is_fixed_and_even():
    """Fixed, because you answer after the server has ended; even, so that no letter is a good guess."""
    rights = [drill.right for drill in DRILLS.drills]
    assert rights == [drill.right for drill in load_drills(COURSE).drills]
    assert max(Counter(rights).values()) <= 7 and set(rights) == set("ABCDE")


def test_the_files_tell_no_answer():
    folder = Path(command.__file__).parent
    for drill in DRILLS.drills:
        says = DRILLS.says(drill.mistake)
        assert says not in (folder / "drills.toml").read_text() and says not in DRILLS.reasons[drill.mistake]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A clone, as far as drills need one."""
    shutil.copy(COURSE.root / "course.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(COURSE.root / "tests" / "known_mistakes.toml", tmp_path / "tests")
    monkeypatch.setattr(command, "load_course", lambda: load_course(tmp_path))
    return tmp_path


def said(capsys, *args, code=0):
    assert main(["drill", *args]) == code
    found = capsys.readouterr()
    return found.out + found.err


def test_answers_are_graded_and_remembered(root, capsys):
    drill = DRILLS.drill(3)
    wrong = next(letter for letter in drill.choices if letter != drill.right)
    told = said(capsys, "3", "--answer", wrong, code=1)
    assert told.startswith(f"{wrong} is wrong") and DRILLS.says(drill.mistake) not in told
    assert " 3  wrong " in said(capsys) and said(capsys).endswith("0 of 20 solved\n")
    told = said(capsys, "3", "--answer", drill.right.lower())
    assert DRILLS.says(drill.mistake) in told and "10, 5, 0" in told
    said(capsys, "3", "--answer", wrong, code=1)
    assert " 3  solved " in said(capsys) and said(capsys).endswith("1 of 20 solved\n"), (
        "what was right stays so"
    )
    assert load_record(root)[0].drills == {drill.mistake: True}


def test_reveal_solves_nothing(root, capsys):
    assert DRILLS.says(DRILLS.drill(5).mistake) in said(capsys, "5", "--reveal")
    assert said(capsys).endswith("0 of 20 solved\n") and load_record(root)[0].drills == {}


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["21"], "there is no drill 21: choose 1 to 20"),
        (["0"], "argument N: must be 1 or more, not 0: ./pdmw run drill --help lists the flags"),
        (["3", "--answer", "F"], "drill 3 has no answer 'F': choose A, B, C, D, E"),
        (["--load"], "which drill? Give its number, 1 to 20"),
        (["3", "--load", "--port", "1"], "no server at http://127.0.0.1:1 ("),
    ],
)
def test_bad_input_is_one_line(args, says, capsys):
    told = said(capsys, *args, code=2)
    assert told.startswith(f"error: {says}") and told.count("\n") == 1


@pytest.mark.usefixtures("root")
def test_a_drill_tells_all_but_its_answer(monkeypatch, capsys):
    served = []
    monkeypatch.setattr(command, "serve_with", lambda *args: served.append(args) or 0)
    told = said(capsys, "3", "--port", "8123")
    drill = DRILLS.drill(3)
    assert drill.complaint.strip() in told and all(each in told for each in drill.look)
    assert all(f"  {letter}  {DRILLS.says(key)}" in told for letter, key in drill.choices.items())
    assert "drill 3 --load --port 8123" in told
    [(_, mistake, arguments)] = served
    assert key_of(mistake) == drill.mistake and arguments == [*drill.serve_arguments, "--port", "8123"]


@pytest.mark.long
def test_a_real_server_has_the_mistake_and_leaves_nothing(tmp_path, capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tiny_llm_lab", "drill", "14", "--port", port]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        while "tiny-llm serves" not in (line := run.stderr.readline()):
            assert line, "it has ended"
        assert list(tmp_path.iterdir()), "the copy"
        told = said(capsys, "14", "--load", "--port", port)
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does
        assert "stopped" in run.stderr.read()
    assert run.returncode == 0 and not list(tmp_path.iterdir())
    assert "length: 'Mira keeps the brass compass in the attic" in told, "the stop string is ignored"


def test_a_prompt_is_filled():
    body = body_of({"name": "a", "ask": "One. {2} Where?", "copies": 2, "later": 1, "max_tokens": 3})
    assert set(body) == {"prompt", "max_tokens"} and len(body["prompt"]) == 2
    assert "One. On day 1 the sun was warm. On day 2 the sun was warm. Where?<|im_end|>" in body["prompt"][0]
