"""`cluster`: the server on Ray Serve."""

import signal
import threading
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from functools import partial
from typing import Final

from fastapi import FastAPI

from tiny_llm_lab.runtime.console.field_flags import add_field_flags, given_fields
from tiny_llm_lab.runtime.console.talk import CrashError, log, plural
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.serving.async_engine.model import in_process
from tiny_llm_lab.serving.building import require_length
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import add_parallel_argument
from tiny_llm_lab.serving.ray_cluster.local_ray import connect, share_cores
from tiny_llm_lab.serving.ray_cluster.replica_settings import ReplicaSettings
from tiny_llm_lab.serving.server import settings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.command import add_served_model, model_settings
from tiny_llm_lab.serving.server.run_server import listen
from tiny_llm_lab.types import UserError

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
            _deploy(
                partial(replica_app, model, server, limits, settings.chat_settings(args)), server, replicas
            )
            if args.address is None:
                _wait_for_end()
                _delete()
    return 0


def replica_app(
    model: ModelSettings,
    server: settings.ServerSettings,
    limits: settings.RequestLimits,
    chat: settings.ChatSettings,
) -> FastAPI:
    """The application of one replica; Ray has drained it when it ends."""
    names = server.served_model_name
    return create_app(
        lambda: start_model(model, names, limits, chat, make_link=in_process), replace(server, drain_s=0.0)
    )


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
