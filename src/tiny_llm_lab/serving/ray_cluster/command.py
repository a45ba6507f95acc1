"""`cluster`: the server on Ray Serve."""

import logging
import os
import signal
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from fastapi import FastAPI

from tiny_llm_lab.runtime.console.field_flags import add_field_flags, at_least_one, flag, given_fields
from tiny_llm_lab.runtime.console.talk import CrashError, log, plural
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.serving.async_engine.model import in_process
from tiny_llm_lab.serving.building import require_length
from tiny_llm_lab.serving.options.model_options import add_parallel_argument
from tiny_llm_lab.serving.server import settings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.command import add_served_model, model_settings
from tiny_llm_lab.serving.server.run_server import listen
from tiny_llm_lab.types import UserError

# Of ReplicaSettings, named as Ray names them.
_SCALING: Final = ("min_replicas", "max_replicas", "upscale_delay_s", "downscale_delay_s")
_OF_ONE_SERVER: Final = ("idle_unload", "enable_live_controls", "enable_log_requests")


@dataclass(frozen=True)
class ReplicaSettings:
    """The flags of a cluster, and the limits that follow from its engines."""

    num_replicas: int = flag(1, "number of engines", at_least_one)
    min_replicas: int | None = flag(None, "fewest engines, with autoscaling", at_least_one)
    max_replicas: int | None = flag(None, "most engines, with autoscaling", at_least_one)
    target_ongoing_requests: float | None = flag(
        None, "requests per engine above which another engine starts (default: half of --max-num-seqs)"
    )
    upscale_delay_s: float = flag(10.0, "seconds above the target before an engine is added", metavar="S")
    downscale_delay_s: float = flag(120.0, "seconds below the target before one is removed", metavar="S")
    num_cpus: float = flag(1.0, "CPUs that an engine reserves on its node (default: --threads)")
    num_gpus: float = flag(0.0, "GPUs that an engine reserves on its node")
    max_queued_requests: int = flag(
        1000, "most requests waiting for an engine; more get status 429", at_least_one
    )
    num_ingress: int = flag(1, "number of processes that route requests to engines", at_least_one)
    by_prefix: bool = flag(True, "send prompts that begin alike to one engine, unless it is overloaded")
    max_num_seqs: int = 64  # requests that a replica's engine runs at a time
    max_body_size: int = 4 * 2**20
    drain_s: float = 30.0  # time for a replica's last requests when it is replaced

    def __post_init__(self) -> None:
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise UserError("--min-replicas and --max-replicas need each other: give both")
        if not 1 <= (self.min_replicas or 1) <= (self.max_replicas or 1):
            raise UserError("--min-replicas must be 1 to --max-replicas")
        if self.target_ongoing_requests is not None and self.max_replicas is None:
            raise UserError("--target-ongoing-requests needs --min-replicas and --max-replicas: give them")

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.num_replicas

    @property
    def max_ongoing(self) -> int:
        """Requests of one replica, twice as many as run, so that its engine never waits for Ray."""
        return 2 * self.max_num_seqs

    @property
    def max_running(self) -> int:
        return self.max_ongoing * self.most_replicas

    def deployment_options(self) -> dict[str, Any]:
        """The options of Ray's deployment."""
        options = {
            "name": "Replica",
            "max_ongoing_requests": self.max_ongoing,
            "max_queued_requests": self.max_queued_requests,
            "ray_actor_options": {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus},
            "health_check_period_s": 2.0,
            "health_check_timeout_s": 30.0,
            "graceful_shutdown_timeout_s": self.drain_s,
            "graceful_shutdown_wait_loop_s": 0.5,
        }
        if self.max_replicas is None:
            return options | {"num_replicas": self.num_replicas}
        scaling = {name: getattr(self, name) for name in _SCALING}
        scaling["target_ongoing_requests"] = self.target_ongoing_requests or max(1, self.max_num_seqs / 2)
        return options | {"autoscaling_config": scaling}


def share_cores(threads: int | None, num_replicas: int) -> int:
    """The threads of an engine: the number asked for, or its share of this machine's cores."""
    return threads or max(1, usable_cores() // num_replicas)


@contextmanager
def connect(address: str | None, shows_workers: bool = True) -> Iterator[None]:
    """A connection to the cluster at `address`, or, with None, a cluster of this machine while in use.

    `shows_workers`: what engines of a local cluster say appears on this process's stderr.

    Raises UserError without Ray, and when there is no cluster at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # don't send reports to another host
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError(
            "Ray is not installed: "
            "python3 -m pip --python .venv/bin/python install 'ray[serve,data]>=2.60,<3'"
        ) from None
    try:
        ray.init(
            address=address or "local",
            namespace="tiny-llm",
            include_dashboard=False if not address else None,
            logging_level=logging.WARNING,
            log_to_driver=shows_workers and address is None,
        )
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"cannot reach a Ray cluster at {address!r} ({error}): start one with ray start"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


HELP = "Serve a model on a Ray cluster: many engines behind one address (needs the optional group ray)."
EXAMPLES: Final = (
    ("--num-replicas 2 --threads 1", "run two engines on this machine until Ctrl-C"),
    ("--address auto --num-replicas 4", "deploy four engines on this machine's cluster"),
    ("--min-replicas 1 --max-replicas 8", "add and remove engines with the queue"),
    ("--address auto --shutdown", "remove the application from the cluster"),
)


def add_arguments(parser: ArgumentParser) -> None:
    about = "address of a Ray cluster, or auto (default: start a local one)"
    parser.add_argument("--address", metavar="A", help=about)
    parser.add_argument("--shutdown", action="store_true", help="remove the application from the cluster")
    add_field_flags(parser, ReplicaSettings)
    add_served_model(parser)
    add_parallel_argument(parser)
    settings.add_server_flags(parser)
    settings.add_chat_flags(parser)


def run(args: Namespace) -> int:
    if args.shutdown and args.address is None:
        raise UserError("--shutdown needs --address: give the cluster's address, or auto")
    given = given_fields(args, ReplicaSettings)
    model = model_settings(args)
    server, limits = settings.server_settings(args)
    if server.ssl_certfile or server.ssl_keyfile:
        raise UserError("a cluster serves http: leave --ssl-certfile out, and put a proxy with TLS in front")
    if ignored := [name for name in _OF_ONE_SERVER if getattr(args, name, False)]:
        name = ignored[0].replace("_", "-")
        raise UserError(f"--{name} is for `serve`, and not for a cluster: leave it out")
    replicas = ReplicaSettings(
        **given,
        max_num_seqs=model.engine.config.max_num_seqs,
        max_body_size=server.most_bytes(),
        drain_s=server.drain_s,
    )
    threads = share_cores(model.threads, replicas.most_replicas)
    model = replace(model, threads=threads)
    if "num_cpus" not in given:
        replicas = replace(replicas, num_cpus=float(threads))
    if args.address is None and not args.shutdown:
        require_length(model)
        find_folder(model.model)  # fail here if the model is missing, before a cluster is started
        listen(server.host, server.port).close()
    with connect(args.address):
        if args.shutdown:
            _delete()
        else:
            names, chat = server.served_model_name, settings.chat_settings(args)
            start = partial(start_model, model, names, limits, chat, make_link=in_process)
            # Ray has drained a replica when it ends.
            _deploy(partial(create_app, start, replace(server, drain_s=0.0)), server, replicas)
            if args.address is None:
                _wait_for_end()
                _delete()
    return 0


def _deploy(make_app: partial[FastAPI], server: settings.ServerSettings, replicas: ReplicaSettings) -> None:
    from ray import serve
    from ray.serve.schema import LoggingConfig

    from tiny_llm_lab.serving.ray_cluster.deployment import APP_NAME, bound_application

    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.start(http_options={"host": server.host, "port": server.port}, logging_config=quiet)
    try:
        serve.run(bound_application(make_app, replicas), name=APP_NAME, logging_config=quiet)
    except RuntimeError as error:
        raise CrashError(f"error: {error} Ray's logs have the replicas' messages.") from None
    scale = plural(replicas.num_replicas, "replica")
    if replicas.max_replicas is not None:
        scale = f"{replicas.min_replicas} to {replicas.max_replicas} replicas"
    log(f"serving on http://{server.host}:{server.port} · {scale}")


def _delete() -> None:
    from ray import serve

    from tiny_llm_lab.serving.ray_cluster.deployment import APP_NAME

    serve.delete(APP_NAME)


def _wait_for_end() -> None:
    """Return at SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
