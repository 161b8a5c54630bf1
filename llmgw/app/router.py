"""A router's composition root: the gateway's workers without a cluster directory of their own.

It is the server's own supervision of workers with a table from elsewhere: a list of endpoints, or what a control plane on
another host sends. So its workers, too, outlive it when it is killed, and the next router of the same state directory
takes them over; one that is replaced gets the newest table at once, whether or not a control plane answers.
"""

import asyncio
import logging
import os
import random

from aiohttp import web

from llmgw import __version__
from llmgw.adapters.control_stream import ControlStream
from llmgw.adapters.prometheus import exposition, serve_metrics
from llmgw.adapters.secrets import Secrets
from llmgw.agent.main import CannotStart
from llmgw.app.places import (
    RouterSettings,
    check_tls,
    embedded_worker,
    held_state_dir,
    is_loopback,
    left_workers,
    network_id,
    reserved_port,
    worker_command,
    workers_socket,
)
from llmgw.app.stopping import heed_signals
from llmgw.control.counting import passed_on
from llmgw.control.workers import Workers
from llmgw.fleet.access import OPEN, Access, KnownKey, TenantRight, hash_of, taken_apart
from llmgw.fleet.spent import SpentBatch
from llmgw.fleet.static import static_table, with_static
from llmgw.fleet.table import EndpointTable
from llmgw.runtime.backoff import Backoff
from llmgw.runtime.clock import RandomIds, SystemClock
from llmgw.runtime.supervisor import Supervisor, first_of
from llmgw.wire.messages import PROTOCOL, RouterHello, WorkerUsage

log = logging.getLogger(__name__)

RETRY_BASE = 0.2
RETRY_MAXIMUM = 5.0
"""Seconds between two tries to reach a control plane."""


def run_router(settings: RouterSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotStart."""
    gateway = settings.gateway
    check_tls(gateway.tls)
    secrets = Secrets(os.environ, settings.secrets_dir)
    if settings.controls:
        _secret(settings.router_secret, secrets)
    access = _own_access(settings, secrets)
    with (
        held_state_dir(gateway.state_dir, None, "router"),
        reserved_port(gateway.listen, gateway.state_dir) as port,
    ):
        asyncio.run(_Router(settings, secrets, port, access).run())


class _Router:
    """All objects of one router."""

    def __init__(self, settings: RouterSettings, secrets: Secrets, port: int, access: Access) -> None:
        gateway = settings.gateway
        self._settings = settings
        self._access = access
        self._url = gateway.url(port)
        self._clock = SystemClock()
        self._run = RandomIds().new()
        self._network = network_id()
        self._tasks = Supervisor("router")
        self._stream = ControlStream(
            settings.controls,
            lambda: secrets.get(settings.router_secret),
            self._hello,
            self._take,
            self._admit,
            self._usage,
            Backoff(RETRY_BASE, RETRY_MAXIMUM, random.Random(os.urandom(16))),
        )
        self._workers = Workers(
            command=worker_command(gateway, port),
            wanted=gateway.workers,
            socket=workers_socket(gateway.state_dir),
            clock=self._clock,
            changed=self._stream.say_usage,
            survivors=lambda: left_workers(gateway.state_dir),
            embedded=embedded_worker(gateway, port),
            spent=self._stream.pass_on if settings.controls else _dropped,
        )

    async def run(self) -> None:
        stopping = asyncio.Event()
        heed_signals(stopping, self._workers, self._settings.gateway.drain)
        crashed = True
        metrics = await self._serve_metrics()
        try:
            await self._workers.start()
            if self._settings.controls:
                self._tasks.loop("control", self._stream.run())
            else:
                self._workers.admit(self._access)
                self._workers.publish(static_table(self._settings.gateway.endpoints), settled=True)
            self._announce()
            await first_of(stopping.wait(), self._tasks.failure(), self._workers.failure())
            crashed = False
        finally:
            if crashed:
                await self._workers.abandon()
            else:
                await self._workers.stop(self._settings.gateway.drain)  # what is in flight is told until it has ended
                if self._settings.controls:
                    await self._stream.leave()
            await self._tasks.stop()
            if metrics is not None:
                await metrics.cleanup()

    async def _serve_metrics(self) -> web.AppRunner | None:
        listen = self._settings.metrics_listen
        if listen is None:
            return None
        try:
            return await serve_metrics(exposition(self._workers.samples), listen)
        except OSError as error:
            raise CannotStart(f"cannot listen on --metrics-listen {listen[0]}:{listen[1]}: {error.strerror}") from error

    def _hello(self) -> RouterHello:
        return RouterHello(
            PROTOCOL,
            __version__,
            self._settings.name,
            self._run,
            self._url,
            self._network,
            self._workers.serving,
            keys=True,
        )

    def _take(self, table: EndpointTable) -> None:
        self._workers.publish(with_static(table, self._settings.gateway.endpoints), settled=True)

    def _admit(self, access: Access) -> None:
        """Go by what the control plane says, unless it would let in every host that reaches this one."""
        if access.required or is_loopback(self._settings.gateway.listen[0]):
            self._workers.admit(access)
        else:
            log.error(
                "nobody is let in: --listen can be reached from other hosts, and the server's `router.auth` is off; "
                "write `auth: keys` there, or listen on 127.0.0.1 here",
                extra={"--listen": self._settings.gateway.listen[0]},
            )

    def _usage(self) -> WorkerUsage:
        workers = self._workers
        return passed_on(workers.usage(), workers.version, workers.requests, self._clock.now())

    def _announce(self) -> None:
        gateway = self._settings.gateway
        fields = {"openai": self._url, "endpoints": len(gateway.endpoints)}
        if self._settings.controls:
            fields |= {"router": self._settings.name, "controls": ",".join(self._settings.controls)}
        log.info("serving", extra=fields)


CLIENTS = "clients"
"""What the clients of a router alone are called in its access log: they have one key, and no tenants."""
SHORTEST = 16
"""Characters of the secret that clients show: it can be tried from anywhere."""


def _own_access(settings: RouterSettings, secrets: Secrets) -> Access:
    """Return who may use a router that follows no control plane. Raises CannotStart."""
    host, port = settings.gateway.listen
    if settings.controls:
        return OPEN  # what the control plane says goes
    if settings.client_secret:
        given = _secret(settings.client_secret, secrets)
        if len(given) < SHORTEST:
            raise CannotStart(
                f"the secret {settings.client_secret} is too short for a key; give it {SHORTEST} characters"
            )
        name, secret = taken_apart(given)
        return Access(1, True, (KnownKey(name, hash_of(secret), CLIENTS),), (TenantRight(CLIENTS, ("*",)),))
    if not is_loopback(host):
        raise CannotStart(
            f"--listen {host}:{port} can be reached from other hosts, and no key is asked for: name the secret that clients "
            "are to show with --client-secret NAME, or listen on 127.0.0.1"
        )
    return OPEN


def _secret(name: str, secrets: Secrets) -> str:
    found = secrets.get(name)
    if not found:
        raise CannotStart(
            f"there is no secret {name}: set LLMGW_SECRET_{name.upper().replace('-', '_')}, or put a file {name} "
            "(mode 0600) into --secrets-dir"
        )
    return found


async def _dropped(_: SpentBatch) -> None:
    """Keep nothing: without a control plane there is no store, and metrics say what there is to say."""
