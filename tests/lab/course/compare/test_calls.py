"""Recording: calls with those inside them, what generators yield, and nothing left behind."""

from tests.lab.course.compare.two_packages import Record, forward, stream

from tiny_llm_lab.course.compare.search import num_calls


def test_calls_are_recorded_with_those_inside_and_the_place_of_their_object(record: Record) -> None:
    made, called = record(forward)
    assert (made.name, [call.name for call in made.calls]) == ("Model.__init__", ["Norm.__init__"] * 3)
    assert [(call.name, call.place) for call in called.calls] == [
        *(("Norm.__call__", ".layers[0]"), ("scale", "")),
        *(("Norm.__call__", ".layers[1]"), ("scale", "")),
        *(("Norm.__call__", ".layers[2]"), ("scale", "")),
    ]
    assert (called.given, called.result) == ({"x": 1}, 22)
    assert num_calls([made, called]) == 4 + 7


def test_what_a_generator_yields_is_its_result(record: Record) -> None:
    _, call = record(stream)[0], record(stream)[-1]
    assert (call.name, call.result, [inner.name for inner in call.calls]) == (
        "Model.tokens",
        (0, 2, 4),
        ["scale"] * 3,
    )
