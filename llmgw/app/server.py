"""The control plane's composition root: builds its objects, runs them, and takes them down in order.

Down means: the lease is given up, the admin API closes, workers finish their streams, sessions close. Engines are not
touched: they outlive the control plane, and the next one takes them over.
"""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import shutil
from typing import TYPE_CHECKING, Any

from llmgw import __version__
from llmgw.adapters.forge_status import ForgeApi
from llmgw.adapters.local_link import LocalLink
from llmgw.adapters.prometheus import exposition
from llmgw.adapters.secrets import Secrets
from llmgw.adapters.sql_store import SqlStore
from llmgw.adapters.sql_thread import is_passing
from llmgw.agent.lineage import end_with_parent
from llmgw.agent.main import ROOTS_SOCKET, CannotStart, default_socket
from llmgw.app.places import (
    ServerSettings,
    check_auth,
    check_tls,
    embedded_worker,
    gateways_name,
    held_state_dir,
    is_loopback,
    left_workers,
    network_id,
    owner_name,
    reserved_port,
    tunnels_dir,
    why,
    worker_command,
    workers_socket,
)
from llmgw.app.sources import source_of
from llmgw.app.stopping import heed_signals
from llmgw.base.ids import OwnerId
from llmgw.catalog.compile import Compiler
from llmgw.catalog.source import SourceTree
from llmgw.control.acts import Acts
from llmgw.control.admin import AdminApi
from llmgw.control.admission import Admission
from llmgw.control.adoption import Adoption
from llmgw.control.applying import ApplyApi, adoption_row
from llmgw.control.book import FleetBook
from llmgw.control.catalogs import Catalogs, CatalogState, compile_in_thread
from llmgw.control.commit_status import Statuses
from llmgw.control.gateways import Gateways
from llmgw.control.hooks import SourceRoutes
from llmgw.control.key_api import KeyApi
from llmgw.control.key_book import KeyBook
from llmgw.control.leadership import Leadership, StoreLoss
from llmgw.control.lease_api import LeaseApi, leader_row
from llmgw.control.operator import OperatorApi
from llmgw.control.plan_api import PlanApi
from llmgw.control.planner_memory import PlannerMemory
from llmgw.control.reconcile import Reconciler
from llmgw.control.revisions import Progress, progress
from llmgw.control.routers import Routers
from llmgw.control.sessions import SILENCE, Sessions, silence_limit
from llmgw.control.spending import Spendings, tidy
from llmgw.control.status import Control, status
from llmgw.control.using import UseTeller
from llmgw.control.workers import Workers
from llmgw.fleet.spent import SpentBatch
from llmgw.ports.links import Link
from llmgw.ports.sinks import StoreUnavailable
from llmgw.runtime.clock import RandomIds, SystemClock
from llmgw.runtime.supervisor import Supervisor, first_of
from llmgw.spec.node import Node

if TYPE_CHECKING:
    from llmgw.adapters.ssh_link import SshWays

log = logging.getLogger(__name__)

FIRST_LOOK = 20.0
"""Seconds that a start waits for the source, if it has a revision that was good before."""
KEEP_AGAIN = 10.0
"""Seconds until the last good revision is written again, after the store could not take it."""


def run_server(settings: ServerSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotStart."""
    gateway = settings.gateway
    check_tls(gateway.tls)
    with (
        held_state_dir(settings.state_dir, settings.admin_socket),
        reserved_port(gateway.listen, settings.state_dir) as port,
    ):
        try:
            server = _Server(settings, port)
        except StoreUnavailable as error:
            raise CannotStart(f"cannot use the store: {error}; mend it, or name another one with --store") from error
        asyncio.run(server.run())


class _Server:
    """All objects of one control plane."""

    def __init__(self, settings: ServerSettings, port: int) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._ids = RandomIds()
        self._port = port
        self._store = SqlStore(settings.store or f"sqlite:///{settings.state_dir / 'store.sqlite'}")
        self._rng = rng = random.Random(os.urandom(16))
        self._secrets = Secrets(os.environ, settings.secrets_dir)
        self._ways: SshWays | None = None
        self._source = source_of(settings, self._clock, self._secrets.get)
        compiler = Compiler()  # reads again only the files that changed
        self._catalogs = Catalogs(
            self._source,
            self._store,
            self._clock,
            self._wake,
            lambda tree: asyncio.to_thread(compiler.compile, tree),
        )
        self._book = FleetBook(self._clock, self._wake)
        self._sessions = Sessions(self._link, self._book, rng, self._secrets, self._silence)
        self._leadership = self._claim()
        self._workers = self._gateway_workers()
        self._routers = self._router_book()
        static = settings.gateway.endpoints
        self._gateways = Gateways(self._workers, self._routers, self._clock, static, self._secrets)
        self._keys = self._key_book()
        self._spendings = Spendings(self._store.usage, self._clock, self._keys.used)
        self._acts = Acts(self._store, self._store, self._clock)
        self._reconciler = Reconciler(
            self._catalogs,
            self._book,
            self._sessions,
            self._leadership,
            self._gateways,
            self._gateways,
            self._acts,
            self._store,
            self._clock,
            first_version=rng.randrange(1 << 44),
        )
        self._adoption = Adoption(
            self._store.revisions, self._catalogs, self._leadership, self._store, self._clock, self._ids, self._wake
        )
        self._reconciler.watched_by(self._adoption)
        self._adoption.audited_by(self._store.audit.record)
        self._memory = PlannerMemory(
            self._store, self._leadership, self._store, self._clock, self._wake, self._remember_nodes
        )
        self._reconciler.remembers_by(self._memory)
        self._teller = UseTeller(
            gateways_name(settings.state_dir, self._ids.new), self._gateways, self._book, self._clock, self._routers
        )
        self._reconciler.tells_by(self._teller)
        self._admin = self._admin_api()
        self._statuses: Statuses | None = None
        if settings.forge is not None:
            forge = ForgeApi(settings.forge, self._secrets.get, self._clock)
            self._statuses = Statuses(forge, self._commits, self._far, self._clock)
        self._tasks = Supervisor("server")

    def _claim(self) -> Leadership:
        return Leadership(
            self._store,
            OwnerId(owner_name(self._ids.new())),
            self._wake,
            self._store,
            self._clock,
            seconds=self._settings.lease,
            on_store_loss=self._on_store_loss,
        )

    def _router_book(self) -> Routers:
        return Routers(
            secret=self._router_secret,
            clock=self._clock,
            changed=self._wake,
            kept=self._settings.state_dir / "routers.json",
            network=network_id(),
            events=self._store,
            spent=self._keep_spent,
        )

    def _gateway_workers(self) -> Workers:
        gateway = self._settings.gateway
        return Workers(
            command=worker_command(gateway, self._port),
            wanted=gateway.workers,
            socket=workers_socket(gateway.state_dir),
            clock=self._clock,
            changed=self._wake,
            survivors=lambda: left_workers(gateway.state_dir),
            embedded=embedded_worker(gateway, self._port),
            spent=self._keep_spent,
        )

    def _key_book(self) -> KeyBook:
        return KeyBook(
            self._store.keys,
            self._gateways,
            lambda: self._catalogs.state.value.catalog,
            self._clock,
            self._ids,
            lambda: secrets.token_urlsafe(32),
            loopback=is_loopback(self._settings.gateway.listen[0]),
            copy=self._settings.state_dir / "keys.json" if self._settings.store is not None else None,
        )

    async def _keep_spent(self, batch: SpentBatch) -> None:
        await self._spendings.keep(batch)

    def _admin_api(self) -> AdminApi:
        snapshot = self._reconciler.snapshot
        operator = OperatorApi(
            self._acts,
            self._store,
            self._clock,
            snapshot,
            self._leadership.why_not,
            self._wake,
            self._reconciler.forget,
            self._settings.gateway.endpoints,
        )
        plans = PlanApi(self._catalogs, snapshot, self._store, self._store.plans, self._clock, self._ids, __version__)
        admission = Admission()
        admission.known_by(self._keys.admin, self._clock)
        admission.audited_by(self._store.audit.record)
        return AdminApi(
            self._catalogs,
            self._reconciler,
            self._status,
            exposition(self._workers.samples, self._status),
            self._sessions.logs,
            compile_in_thread,
            operator,
            plans,
            admission,
            (
                *SourceRoutes(self._catalogs.hint, self._catalogs.permit, self._hook_secret, self._clock).routes(),
                *self._routers.routes(),
                *LeaseApi(self._leadership, self._store, self._clock).routes(),
                *ApplyApi(self._adoption, plans, self._reconciler, self._clock).routes(),
                *KeyApi(self._keys, self._store.usage, self._store.audit, self._clock).routes(),
            ),
        )

    async def run(self) -> None:
        if self._settings.ephemeral:
            end_with_parent()
        stopping = asyncio.Event()
        heed_signals(stopping, self._workers, self._settings.gateway.drain)
        crashed = True
        try:
            await self._open_store()
            await self._first_catalog()
            check_auth(self._catalogs.state.value.catalog, self._settings.gateway.listen)
            self._keys.publish()
            await self._listen()
            await self._remember_nodes()
            await self._leadership.renew()
            await self._take_over()
            self._tasks.loop("catalogs", self._catalogs.run())
            self._tasks.loop("adoption", self._adoption.run())
            self._tasks.loop("last tree", self._keep_last_tree())
            self._tasks.loop("nodes", self._keep_nodes())
            self._tasks.loop("acts", self._acts.run())
            self._tasks.loop("keys", self._keys.run())
            tidying = tidy(self._store.usage, self._store.audit, self._store.keys, self._clock, self._usage_kept)
            self._tasks.loop("tidy", tidying)
            self._tasks.loop("leadership", self._leadership.run())
            self._tasks.loop("memory", self._memory.run())
            self._tasks.loop("reconcile", self._reconciler.run())
            if self._statuses is not None:
                self._tasks.loop("commit statuses", self._statuses.run())
            self._reconciler.wake()
            self._announce()
            await first_of(stopping.wait(), self._tasks.failure(), self._sessions.failure(), self._workers.failure())
            crashed = False
        except CannotStart:
            crashed = False
            raise
        finally:
            await self._tasks.stop()
            await self._routers.stop()
            await self._admin.stop()
            await self._leadership.release()
            if crashed:
                # as after SIGKILL: workers serve on by their last table, and the next control plane takes them over
                await self._workers.abandon()
            else:
                await self._workers.stop(self._settings.gateway.drain)
                await self._sessions.farewell(self._teller.farewell())
            with contextlib.suppress(StoreUnavailable):
                await self._keys.note_used()
            await self._sessions.stop()
            await self._store.close()

    async def _open_store(self) -> None:
        """Open the store. One that does not answer may come back, so that this server then serves and waits for it."""
        try:
            await self._store.open(alone=self._settings.store is None)  # its directory is locked by this process
            await self._acts.load()
            await self._keys.load()
        except StoreUnavailable as error:
            if self._settings.store is None or not is_passing(error):
                raise CannotStart(
                    f"cannot use the store: {error}; mend it, or name another one with --store"
                ) from error
            log.warning("the store cannot be used; serving without leading until it can", extra={"reason": str(error)})
            self._keys.recall()

    async def _first_catalog(self) -> None:
        """Have a catalog before anything listens: what was in force before, or else the newest valid one.

        What was in force is looked at first, since its rules say what may come after it.
        """
        last: SourceTree | None = None
        with contextlib.suppress(StoreUnavailable):  # told by `_open_store`
            last = await self._adoption.load() or await self._store.last_tree()
        if last is not None and not await self._catalogs.remember(last):
            log.error("what was in force is not valid for this llmgw", extra={"revision": last.revision})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK if self._catalogs.state.value.catalog is not None else None):
                await self._catalogs.look()
        state = self._catalogs.state.value
        if state.waiting is not None and state.waiting.kind != "leader":  # nobody leads yet; in a moment this one may
            log.warning("the newest revision is not in force: %s", state.waiting.text)
        if state.catalog is not None:
            if state.failed is not None or state.rejected is not None:
                log.error("serving the last good revision", extra={"revision": state.catalog.revision})
            return
        if state.candidate is not None:
            return
        if state.failed is not None:
            raise CannotStart(state.failed.reason)
        assert state.rejected is not None
        lines = "\n".join(f"  {problem}" for problem in state.rejected.problems)
        raise CannotStart(
            f"{self._source.describe()} is not a valid cluster directory (`llmgw validate` shows more):\n{lines}"
        )

    async def _take_over(self) -> None:
        try:
            await self._adoption.take_over()
            await self._memory.take_over()
        except StoreUnavailable as error:
            log.warning("what an earlier leader left is not known yet", extra={"reason": str(error)})

    async def _listen(self) -> None:
        try:
            await self._admin.start(self._settings.admin_socket, self._settings.admin_listen)
        except OSError as error:
            where = ":".join(str(part) for part in self._settings.admin_listen or ())
            raise CannotStart(
                f"cannot listen on {self._settings.admin_socket}{' or ' + where if where else ''}: {why(error)}; "
                "choose another place with --admin-socket or --admin-listen"
            ) from error
        self._routers.load()
        await self._workers.start()

    async def _keep_last_tree(self) -> None:
        """Write down each catalog's tree, so that a restart with a broken source serves what was good before."""
        states = self._catalogs.state
        kept: SourceTree | None = None
        while True:
            version = states.version
            tree = states.value.tree
            if tree is not None and tree is not kept:
                try:
                    await self._store.keep_tree(tree)
                except StoreUnavailable as error:
                    log.warning("the last good revision could not be kept", extra={"reason": str(error)})
                    await asyncio.sleep(KEEP_AGAIN)
                    continue
                kept = tree
            await states.newer(version)

    async def _remember_nodes(self) -> None:
        """Go on with nodes that left the catalog before they were empty."""
        catalog = self._catalogs.state.value.catalog
        if catalog is None:
            return
        try:
            known = await self._store.last_nodes()
        except StoreUnavailable as error:
            log.warning("which nodes hold something is not known", extra={"reason": str(error)})
            return
        left = {name: node for name, node in known.items() if name not in catalog.nodes}
        self._sessions.remember(catalog.cluster.name, {**left, **catalog.nodes}, known, catalog.cluster.ssh)

    async def _keep_nodes(self) -> None:
        """Write down which nodes hold something, so that a later control plane does not forget one that left."""
        holding = self._reconciler.holding
        while True:
            version = holding.version
            if (
                version and self._leadership.epoch is not None
            ):  # what a past leader knew is not written over what is true
                try:
                    await self._store.keep_nodes(holding.value)
                except StoreUnavailable as error:
                    log.warning("which nodes hold something could not be kept", extra={"reason": str(error)})
                    await asyncio.sleep(KEEP_AGAIN)
                    continue
            await holding.newer(version)

    def _announce(self) -> None:
        gateway = self._settings.gateway
        catalog = self._catalogs.state.value.catalog
        log.info(
            "serving",
            extra={
                "openai": gateway.url(self._port),
                "admin": self._settings.admin_socket,
                "cluster": catalog.cluster.name if catalog is not None else "nothing is in force yet",
                "source": self._source.describe(),
            },
        )

    def _usage_kept(self) -> float | None:
        catalog = self._catalogs.state.value.catalog
        return catalog.cluster.router.usage_kept if catalog is not None else None

    def _notices(self) -> tuple[str, ...]:
        trouble = self._statuses.trouble if self._statuses is not None else ""
        return (*self._source.notices(), *([trouble] if trouble else []))

    def _commits(self) -> CatalogState | None:
        """Return what is known of commits; None while another control plane decides, which then speaks of them."""
        return self._catalogs.state.value if self._leadership.epoch is not None else None

    def _far(self) -> Progress:
        return progress(self._reconciler.last, self._reconciler.snapshot(), self._adoption.revisions)

    def _hook_secret(self) -> str | None:
        return self._secrets.get(self._settings.hook_secret) if self._settings.hook_secret else None

    def _router_secret(self) -> str | None:
        return self._secrets.get(self._settings.router_secret) if self._settings.router_secret else None

    def _wake(self) -> None:
        self._reconciler.wake()

    def _link(self, node: Node) -> Link:
        if node.local:
            return LocalLink(default_socket())
        from llmgw.adapters.ssh_link import (  # noqa: PLC0415 - 20 MB that a cluster without SSH nodes does not need
            LONGEST_NAME,
            SshLink,
            SshWays,
        )

        if self._ways is None:
            directory = tunnels_dir(self._settings.state_dir, LONGEST_NAME)
            self._ways = SshWays.prepare(directory, str(ROOTS_SOCKET), shutil.which("ssh"), self._secrets)
        return SshLink(self._ways, node.name, random.Random(self._rng.random()))

    def _on_store_loss(self) -> StoreLoss:
        catalog = self._catalogs.state.value.catalog
        return catalog.cluster.control.on_store_loss if catalog is not None else "keep"

    def _silence(self) -> float:
        catalog = self._catalogs.state.value.catalog
        return silence_limit(catalog.cluster.control.unreachable_after) if catalog is not None else SILENCE

    def _status(self) -> dict[str, Any]:
        alarms = (
            *self._leadership.alarms,
            self._workers.trouble,
            *self._routers.alarms,
            *self._gateways.alarms,
            *self._sessions.alarms,
            *self._reconciler.alarms,
            *self._keys.alarms,
        )
        control = Control(
            version=__version__,
            pid=os.getpid(),
            source=self._source.describe(),
            listen=self._settings.gateway.url(self._port),
            admin_socket=str(self._settings.admin_socket),
            leading=self._leadership.epoch is not None,
            epoch=self._leadership.epoch,
            leader=leader_row(self._leadership),
            workers=tuple(self._workers.pids),
            routers=tuple(self._routers.rows()),
            router_notices=self._routers.notices,
            alarms=tuple(alarm for alarm in alarms if alarm),
            notices=self._notices(),
        )
        snapshot = self._reconciler.snapshot()
        shown = status(control, self._catalogs.state.value, snapshot, self._reconciler.last, self._clock.now())
        return {**shown, **adoption_row(self._adoption, self._catalogs, self._clock)}
