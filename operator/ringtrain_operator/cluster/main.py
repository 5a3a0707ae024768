"""The operator as a process: its loop and its signals."""

import asyncio
import contextlib
import gc
import logging
import signal

from ringtrain_operator.cluster.api import ApiError, Connection
from ringtrain_operator.cluster.config import OperatorConfig
from ringtrain_operator.cluster.operator import LeaseLost, Operator

log = logging.getLogger(__name__)


def run_until_signalled(config: OperatorConfig, connection: Connection) -> Exception | None:
    """Run until SIGTERM or SIGINT; returns what made it end otherwise."""
    gc.freeze()  # what was imported stays: the collector need not look at it again and again
    try:
        asyncio.run(_run(config, connection))
    except (LeaseLost, ApiError) as exc:
        return exc
    return None


async def _run(config: OperatorConfig, connection: Connection) -> None:
    operator = Operator(config, connection)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, operator.stop)
    scope = ", ".join(config.namespaces) or "the whole cluster"
    log.info("serving %s on %s as %s", scope, connection.server, config.identity)
    await operator.run()
    log.info("stopped")
