"""`bench` of a clone: the lab's, with other engines as baselines."""

from argparse import ArgumentParser, Namespace

from benchmarks.peers.registry import PEERS
from tiny_llm_lab.measure.bench.throughput import command

HELP = "Measure prefill and decode speed, and compare it with the machine's limits and other engines."


def add_arguments(parser: ArgumentParser) -> None:
    command.add_arguments(parser, PEERS)


def run(args: Namespace) -> int:
    return command.run(args, PEERS)
