"""What tests of a step ahead look at: the order of launches and reads, and what events say."""

from itertools import zip_longest

from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import PrefillEvent, TokenEvent


def told(event):
    """What an event says, without its time."""
    if isinstance(event, PrefillEvent):
        return event.prompt_idx, event.num_computed_tokens
    if isinstance(event, TokenEvent):
        return event.prompt_idx, event.token_id, event.text
    done = event.completion
    return done.prompt_idx, done.token_ids, done.text, done.finish_reason


def assert_same_events(ahead, in_turn):
    """Both lists of `told` events are equal; otherwise the first that differs is named, with those before."""
    for at, (got, want) in enumerate(zip_longest(ahead, in_turn, fillvalue="nothing more")):
        assert got == want, (
            f"event {at}: a step ahead tells {got}, step by step it is {want} "
            f"(request, token, text); just before both told {in_turn[max(0, at - 4) : at]}"
        )


def watched(llm, monkeypatch, model):
    """The log of `model`, in which a read of a step stands beside the forward passes."""
    read = llm.DecodeStep.read

    def logged(step):
        model.log.append("read")
        return read(step)

    monkeypatch.setattr(llm.DecodeStep, "read", logged)
    return model.log


def steps_of(log):
    return [entry for entry in log if not entry.startswith("materialize")]


def streamed(llm, model, prompt, sampling, **settings):
    return llm.stream_generate(model, ByteTokenizer(), prompt, sampling, **settings)


def num_ahead(log):
    """Forward passes that begin while another waits to be read."""
    waiting = count = 0
    for entry in log:
        waiting += 1 if entry == "forward" else -1
        count += entry == "forward" and waiting > 1
    return count
