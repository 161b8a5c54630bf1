"""A router's composition root: the gateway's workers without a control plane of their own.

It is the server's own supervision of workers with a table from elsewhere. So its workers, too, outlive it when it is
killed, and the next router of the same state directory takes them over.
"""

import asyncio
import logging

from llmgw.app.places import (
    RouterSettings,
    check_tls,
    held_state_dir,
    is_loopback,
    left_workers,
    reserved_port,
    worker_command,
    workers_socket,
)
from llmgw.app.stopping import heed_signals
from llmgw.control.workers import Workers
from llmgw.fleet.static import static_table
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.supervisor import first_of

log = logging.getLogger(__name__)


def run_router(settings: RouterSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotStart."""
    gateway = settings.gateway
    check_tls(gateway.tls)
    with (
        held_state_dir(gateway.state_dir, None, "router"),
        reserved_port(gateway.listen, gateway.state_dir) as port,
    ):
        asyncio.run(_Router(settings, port).run())


class _Router:
    """All objects of one router."""

    def __init__(self, settings: RouterSettings, port: int) -> None:
        gateway = settings.gateway
        self._settings = settings
        self._port = port
        self._workers = Workers(
            command=worker_command(gateway, port),
            wanted=gateway.workers,
            socket=workers_socket(gateway.state_dir),
            clock=SystemClock(),
            changed=lambda: None,
            survivors=lambda: left_workers(gateway.state_dir),
        )

    async def run(self) -> None:
        stopping = asyncio.Event()
        heed_signals(stopping, self._workers, self._settings.gateway.drain)
        crashed = True
        try:
            await self._workers.start()
            self._workers.publish(static_table(self._settings.gateway.endpoints), settled=True)
            self._announce()
            await first_of(stopping.wait(), self._workers.failure())
            crashed = False
        finally:
            if crashed:
                await self._workers.abandon()
            else:
                await self._workers.stop(self._settings.gateway.drain)

    def _announce(self) -> None:
        gateway = self._settings.gateway
        if not is_loopback(gateway.listen[0]):
            log.warning(
                "anybody who reaches this address may use it: there are no keys yet",
                extra={"--listen": gateway.listen[0]},
            )
        log.info("serving", extra={"openai": gateway.url(self._port), "endpoints": len(gateway.endpoints)})
