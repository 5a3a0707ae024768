"""`ringtrain agent`: join, start the ranks, watch them and the launcher, ship everything, leave."""

import logging
import queue
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ringtrain.errors import ConfigurationError
from ringtrain.shared.processes import become_subreaper, signal_handler
from ringtrain_job.agent.config import AgentConfig
from ringtrain_job.agent.coordinator import Event
from ringtrain_job.agent.elastic.slots import RankProgram
from ringtrain_job.agent.lifecycle import AgentLifecycle
from ringtrain_job.agent.pod import AgentPod
from ringtrain_job.control.termination import termination_message, write_termination_message
from ringtrain_job.logs.journal import LogStream
from ringtrain_job.logs.records import prefixed_records
from ringtrain_job.logs.store import LogChunk

log = logging.getLogger(__name__)


def run_agent(config: AgentConfig, command: Sequence[str], inherited: Mapping[str, str]) -> int:
    """Run `command` as the ranks of one worker to the end of the attempt; returns the agent's exit code.

    `inherited`: the pod's environment, which the ranks get with theirs added.
    """
    if not command and not config.mpi:
        raise ConfigurationError("an agent of a ring job needs a command: `ringtrain agent -- CMD…`")
    become_subreaper()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def deliver(number: int, _: object) -> None:
        events.put(signal.Signals(number))  # SimpleQueue.put may be interrupted by itself

    with ExitStack() as stack:
        stack.enter_context(signal_handler(deliver, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT))
        if config.data_workers:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringtrain-data-"))
            config = replace(config, data_file=Path(directory) / "workers.json")
        pod = AgentPod(config, RankProgram(command, inherited), events, stack)
        ending = AgentLifecycle(config, pod, events).run()
        lost = _print_unsent_lines(pod.unshipped())
        if lost:
            log.error("%d log lines are in no file: the launcher could not write them. They stand here above", lost)
        message = termination_message(ending.verdict, config.job.attempt, config.world_size, lost_log_lines=lost)
        write_termination_message(config.termination, message)
    return ending.exit_code


def _print_unsent_lines(chunks: Iterable[LogChunk]) -> int:
    """Write lines of logs to this process's own output, and return how many there are."""
    count = 0
    for chunk in chunks:
        if chunk.stream is LogStream.LOG:
            count += chunk.lines
            with suppress(OSError):  # nobody reads
                sys.stdout.buffer.write(prefixed_records(chunk.rank, chunk.data))
                sys.stdout.buffer.flush()
    return count
