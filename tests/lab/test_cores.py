"""How many threads compute: cores of the affinity mask, hyper-threads, and quotas of cgroups."""

import os

import pytest

from tiny_llm_lab.runtime.native.settings import usable_cores

V2 = "0::/pod/box"
V1 = "5:memory:/pod/box\n1:cpu,cpuacct:/pod/box"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Eight CPUs, all usable: four cores of two hyper-threads each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for cpu in range(8):
        write(tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    return tmp_path


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def cores(machine, own_cgroups):
    write(machine / "own", own_cgroups)
    return usable_cores(machine / "own", machine / "groups", machine / "cpu")


CPUS = [({0}, 1), ({0, 4}, 1), ({0, 1, 5}, 2), (set(range(8)), 4)]


@pytest.mark.parametrize(("cpus", "expected"), CPUS, ids=str)
def test_hyper_threads_of_one_core_count_once(machine, monkeypatch, cpus, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus, raising=False)
    assert cores(machine, "") == expected


def test_without_a_topology_every_cpu_counts(machine):
    assert usable_cores(machine / "none", machine / "none", machine / "none") == 8


QUOTAS = [
    ("max 100000", 4),
    ("200000 100000", 2),
    ("250000 100000", 2),
    ("50000 100000", 1),
    ("900000 100000", 4),
    ("", 4),
]


@pytest.mark.parametrize(("quota", "expected"), QUOTAS)
@pytest.mark.parametrize("place", ["pod/box", "pod", "."])
def test_a_quota_of_any_group_around_the_process_bounds(machine, quota, expected, place):
    write(machine / "groups" / place / "cpu.max", quota)
    assert cores(machine, V2) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("150000", 3), ("20000", 1)])
@pytest.mark.parametrize("place", ["pod/box", "."], ids=["its own group", "a container's root"])
def test_a_quota_of_the_first_cgroups_bounds(machine, quota, expected, place):
    write(machine / "groups/cpu" / place / "cpu.cfs_quota_us", quota)
    write(machine / "groups/cpu" / place / "cpu.cfs_period_us", "50000")
    assert cores(machine, V1) == expected


def test_the_smallest_quota_counts(machine):
    write(machine / "groups/pod/cpu.max", "200000 100000")
    write(machine / "groups/pod/box/cpu.max", "300000 100000")
    assert cores(machine, V2) == 2
