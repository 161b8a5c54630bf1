"""What a signal to stop does to a process with gateway workers: the first lets streams finish, a second cuts them."""

import asyncio
import logging
import signal

from llmgw.control.workers import Workers

log = logging.getLogger(__name__)


def heed_signals(stopping: asyncio.Event, workers: Workers, drain: float) -> None:
    """Set `stopping` at SIGTERM or SIGINT, from now on; at the second one, cut what the workers still serve."""

    def told() -> None:
        if stopping.is_set():
            log.warning("told to stop a second time; streams that still run are cut")
            workers.cut()
        else:
            log.info("stopping; running requests may take up to %.0f s; a second signal cuts them", drain)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
