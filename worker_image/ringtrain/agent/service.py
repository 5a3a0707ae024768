"""The agent's own service."""

from collections.abc import Callable
from typing import Any

from ringtrain.agent.config import AgentConfig
from ringtrain.agent.coordinator import AgentState
from ringtrain.control.wire import rank_to_wire
from ringtrain.gen import agent_pb2


class AgentService:
    """What the launcher calls. Names are those of the service in proto/ringtrain/v1/agent.proto."""

    def __init__(self, config: AgentConfig, state: Callable[[], AgentState]) -> None:
        self._config = config
        self._state = state

    def Describe(self, request: Any, context: Any) -> Any:
        return agent_pb2.DescribeReply(
            attempt=self._config.job.attempt,
            worker_index=self._config.index,
            pod=self._config.pod,
            ranks=[rank_to_wire(state) for state in self._state().ranks],
        )
