"""What a signal to stop does to a process with gateway workers: the first lets streams finish, a second cuts them."""

import asyncio
import contextlib
import logging
import os
import signal

from llmgw.control.workers import Workers

log = logging.getLogger(__name__)


def heed_signals(stopping: asyncio.Event, workers: Workers, drain: float) -> None:
    """Set `stopping` at SIGTERM or SIGINT, from now on; at the second one, kill the workers too."""

    def told() -> None:
        if stopping.is_set():
            log.warning("told to stop a second time; streams that still run are cut")
            for pid in workers.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            log.info("stopping; running requests may take up to %.0f s; a second signal cuts them", drain)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
