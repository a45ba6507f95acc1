"""Forms are tried where sockets, hang-ups and ended children are as on macOS."""

import math
import os
import select
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from tests.helpers import like_macos

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.runtime.structured import trial_process, trials
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.types import StructuredOutputs, UserError


def test_one_process_tries_all_forms(monkeypatch):
    monkeypatch.setattr(trials, "_MODULE", "tests.helpers.like_macos")
    found = load_checkpoint("default")
    grammars = Grammars(found.tokenizer, found.config.vocab_size, timeout_s=0.3)
    assert grammars.processor(StructuredOutputs(regex="a|b")).error is None
    first = grammars._trials.process
    for form, complaint in [
        ({"grammar": "start: missing"}, "missing"),
        ({"json": {"type": "integer", "multipleOf": 1000003}}, "takes more than 0.3 s"),
    ]:
        with pytest.raises(UserError, match=complaint):
            grammars.processor(StructuredOutputs(**form))
    assert grammars.processor(StructuredOutputs(regex="c")).error is None
    assert grammars._trials.process is first


class Control:
    """The control socket of a process that says `words`, one for each form, and answers before it reads.

    A form on its way is a number, which is nothing once its sender has closed it.
    """

    def __init__(self, *words):
        self.words, self._taken, self._number = list(words), ExitStack(), None

    def sendmsg(self, _, ancillary):
        if self.words is None:
            raise OSError("closed")
        ((_, _, (self._number,)),) = ancillary

    def recv(self, _):
        word = self.words.pop(0)
        if isinstance(word, BaseException):
            raise word
        if word:
            client = self._taken.enter_context(socket.socket(fileno=os.dup(self._number)))
            client.sendall(b'{"cpu_s": 0.5}')
            client.shutdown(socket.SHUT_WR)
        return word

    def close(self):
        assert not self.words
        self.words = None
        self._taken.close()


@pytest.fixture
def started(monkeypatch):
    """Makes Trials whose processes are, one after the other, those of the controls given."""

    def make(*controls):
        made, left = trials.Trials(dict, timeout_s=2), list(controls)

        def start():
            made._stop = left[0].close
            return left.pop(0)

        monkeypatch.setattr(made, "_start", start)
        return made

    return make


PROCESSES = {
    "one": [(b"t", b"t")],
    "the first ends while it starts": [(b"",), (b"t", b"t")],
    "the first ends with a form on its way": [(b"t", b""), (b"t",)],
    "the first leaves a form unread": [(b"t", ConnectionResetError()), (b"t",)],
}


@pytest.mark.parametrize("words", PROCESSES.values(), ids=PROCESSES)
def test_a_form_stays_open_until_the_process_has_taken_it(started, words):
    controls = [Control(*each) for each in words]
    made = started(*controls)
    assert [made.require("a"), made.require("b")] == [0.5, 0.5]
    assert made._control is controls[-1]
    made._stop()


def test_a_word_that_nobody_waited_for_is_not_taken_for_another_form(started):
    interrupted, second = Control(KeyboardInterrupt()), Control(b"t")
    made = started(interrupted, second)
    with pytest.raises(KeyboardInterrupt):
        made.require("a")
    assert made.require("a") == 0.5
    assert made._control is second
    made._stop()


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_message_that_lost_its_form_is_taken_too(pair):
    owner, control = pair
    owner.sendall(b"f")
    assert trial_process.Trials(control, None, 2.0)._wait() == set()
    assert owner.recv(1, socket.MSG_DONTWAIT) == b"t"


def test_an_owner_that_leaves_before_it_has_read_is_gone(pair):
    owner, control = pair
    running = trial_process.Trials(control, None, 2.0)
    owner.sendall(b"f")
    running._wait()
    owner.close()
    assert running._wait() is None


def test_hang_ups_end_a_trial_and_a_grammar_that_is_not_read_does_not(monkeypatch, pair):
    if sys.platform != "darwin":
        monkeypatch.setattr(select, "poll", like_macos.Poll)
    client, theirs = pair
    end, child_end = os.pipe()
    owner, control = socket.socketpair()
    with owner, control, os.fdopen(end), os.fdopen(child_end) as child:
        running = trial_process.Trials(control, None, math.inf)
        running._running.append(trial_process._Trial(0, theirs, end, math.inf))
        client.sendall(b"grammar")
        assert running._wait() == set()
        child.close()
        assert running._wait() == {end}
        client.shutdown(socket.SHUT_RDWR)
        assert running._wait() == {end, theirs.fileno()}


def test_a_child_that_ends_while_it_is_looked_at_goes_on_to_its_end():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    trial = trial_process._Trial(process.pid, socket.socket(), -1, -1.0)
    with trial.client:
        assert trial_process.Trials(trial.client, None, math.inf)._verdict(trial, set()) == ""
