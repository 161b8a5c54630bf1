"""Waiting for the end of any process, our child or not, by the kernel's pidfd: no polling, and no signal to miss."""

import asyncio
import os


async def ended(pid: int) -> None:
    """Return when the process has ended; at once if there is none. It is not reaped."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        if not over.done():
            over.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await over
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
