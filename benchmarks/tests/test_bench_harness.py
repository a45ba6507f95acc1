"""The harness and the report that all benchmarks share: order, medians, ratios, tables, facts."""

import io
import itertools
import json
import re

import mlx.core as mx
import pytest
from rich.console import Console
from tests.helpers.fake_clock import FakeClock

from benchmarks.harness import Variant, time_variants
from tiny_llm_lab.measure.bench import host
from tiny_llm_lab.measure.bench.report import Aim, Column, Ratio, Report, Row, Section, print_section
from tiny_llm_lab.runtime.interleave import interleave


def test_the_order_is_balanced():
    order = list(interleave([1, 2, 3], 2))
    assert order == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1)]
    assert list(interleave("ab", 1, warm_ups=2)) == [
        (-2, "a"),
        (-2, "b"),
        (-1, "b"),
        (-1, "a"),
        (0, "a"),
        (0, "b"),
    ]
    assert list(interleave("ab", 2, alternate=False)) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_a_variant_that_is_removed_has_no_further_turn():
    left, turns = ["a", "b", "c"], []
    for _, name in interleave(left, 2):
        turns.append(name)
        if name == "a" and "b" in left:
            left.remove("b")
    assert turns == ["a", "c", "c", "a"]


def test_variants_are_interleaved_and_the_warm_up_does_not_count():
    clock, order = FakeClock(), []

    def variant(name, seconds):
        return Variant(name, lambda: (order.append(name), clock.sleep(seconds * len(order)))[1])

    seconds = time_variants([variant("a", 1.0), variant("b", 0.5)], 2, clock=clock, synchronize=lambda: None)
    assert "".join(order) == "baabba", "warm-up, a round forwards, a round backwards"
    assert seconds == {"a": (3.0, 6.0), "b": (2.0, 2.5)}
    with pytest.raises(ValueError, match="same name"):
        time_variants([variant("a", 1.0), variant("a", 1.0)], 1, clock=clock)


def test_slow_variants_run_twice_and_lazy_results_are_evaluated():
    clock, slow = FakeClock(), []
    x = mx.ones(3)
    variants = [
        Variant("slow", lambda: (slow.append(1), clock.sleep(1.0), x + len(slow))[2]),
        Variant("fast", lambda: clock.sleep(0.1)),
    ]
    seconds = time_variants(variants, 9, slow_s=0.3, clock=clock)
    assert [len(seconds[name]) for name in ("slow", "fast")] == [2, 9] and len(slow) == 2


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_rounds():
    found = Ratio.of("x", [2.0, 3.0, 10.0], [2.0, 2.0, 4.0], Aim(at_most=1.4))
    assert found is not None
    assert (found.value, found.low, found.high, found.is_met) == (1.5, 1.0, 2.5, False)
    assert found.line() == "x: 1.500 (1.000 to 2.500), aim at most 1.4: MISSED"
    met, none = Ratio.of("x", [1.0], [1.0], Aim(at_least=0.95)), Ratio.of("x", [1.0], [1.0])
    assert met is not None and met.is_met is True and none is not None and none.is_met is None
    assert none.line() == "x: 1.000"


@pytest.mark.parametrize(("over", "under"), [([1.0, None], [1.0, 1.0]), ([1.0], [0.0]), ([], [])])
def test_there_is_no_ratio_where_something_was_not_measured(over, under):
    assert Ratio.of("x", over, under) is None


def test_cells():
    column = Column("s", "ms", ".1f", 1e3, has_spread=True)
    assert column.cell([0.001, 0.003, 0.002]) == "2.0 (1.0-3.0)"
    assert [column.cell(samples) for samples in ([0.001], [], [None], [0.001, None])] == ["1.0", "", "-", "-"]
    assert Column("s", "", ".2f", has_spread=True, unit="x").cell([1.0, 2.0]) == "1.50x (1.00-2.00)"
    assert Column("s", "", ".2f").cell([1.0, 2.0]) == "1.50"


def section():
    columns = [Column(f"m{i}", f"metric {i}", ".2f", has_spread=True) for i in range(9)]
    numbers = itertools.count(1)
    rows = [Row(f"variant {v}", {f"m{i}": [next(numbers) * 1234.5, 0.5] for i in range(9)}) for v in range(3)]
    return Section("name", "a title", columns, rows, notes=["a note"])


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_tables_fold_and_no_number_is_cut(width, is_terminal):
    def lines(width):
        file = io.StringIO()
        print_section(
            Console(width=width, file=file, force_terminal=is_terminal, color_system=None), section()
        )
        return file.getvalue().splitlines()

    def numbers(shown):
        return sorted(re.findall(r"[\d.]+\.\d\d", " ".join(shown)))

    narrow = lines(width)
    assert max(map(len, narrow)) <= width and "…" not in "".join(narrow)
    assert numbers(narrow) == numbers(lines(500)) and len(numbers(narrow)) == 3 * 9 * 3
    assert sum("variant 2" in line for line in narrow) > 1, "every part of the table names its rows"


def test_every_document_has_the_schema_and_the_samples(capsys):
    host_part = {"cpu": "x"}
    report = Report(is_json=True)
    report.add(section())
    assert capsys.readouterr().out == ""
    result = report.end("kernels", {"op": "qmm"}, host_part, extra=1)
    value = json.loads(capsys.readouterr().out)
    assert value == result
    assert (value["schema"], value["benchmark"], value["extra"]) == (1, "kernels", 1)
    assert value["settings"] == {"op": "qmm"} and value["host"] == host_part
    metric = value["sections"][0]["rows"][0]["metrics"]["m0"]
    assert metric == {"median": 617.5, "min": 0.5, "max": 1234.5, "samples": [1234.5, 0.5]}


def test_host_facts_of_a_mac_with_a_gpu(monkeypatch):
    said = {"sysctl": "Apple M9"}
    monkeypatch.setattr(host, "_output", lambda *command: said.get(command[0]))
    monkeypatch.setattr(host.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(host.platform, "mac_ver", lambda: ("26.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(host.mx, "default_device", lambda: mx.gpu)
    info = {"device_name": "Apple M9", "memory_size": 64, "max_recommended_working_set_size": 48}
    monkeypatch.setattr(host.mx, "device_info", lambda: info)
    facts = host.host_facts()
    assert (facts["cpu"], facts["system_version"]) == ("Apple M9", "26.1")
    assert facts["gpu"] == {"name": "Apple M9", "memory_bytes": 64, "recommended_working_set_bytes": 48}
