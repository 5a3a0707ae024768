"""Parser of TensorFlow's variable `TF_CONFIG`: a cluster of tasks by type, and the task of this process."""

import json
from dataclasses import dataclass
from typing import Any, Final

from ringtrain._core.world.topology import check_addresses, same_address
from ringtrain.errors import ConfigurationError, quoted, shown

RING_TYPES: Final = ("chief", "worker")
KNOWN_TYPES: Final = (*RING_TYPES, "ps", "evaluator")


@dataclass(frozen=True)
class TfTask:
    """Task of this process in the cluster. `addresses`: addresses of all ranks, chief first; empty for an evaluator."""

    type: str
    index: int
    rank: int
    addresses: tuple[str, ...]


def parse_tf_config(text: str) -> TfTask | None:
    """Return this process's task in the JSON `text`; None if it describes no cluster.

    The chief is rank 0, then the workers. An evaluator is outside the ring and need not be in the cluster. Raises
    ConfigurationError with the place of an error in the text, and for the task of a parameter server.
    """
    config = _tf_config_object(_tf_config_json(text), "TF_CONFIG")
    cluster = {
        kind: _tf_config_addresses(kind, value)
        for kind, value in _tf_config_object(config.get("cluster", {}), "cluster").items()
    }
    task = _tf_config_object(config.get("task", {}), "task")
    if not task and not any(cluster.values()):
        return None
    if "type" not in task:
        raise ConfigurationError('TF_CONFIG has a cluster but no task; expected "task": {"type": …, "index": …}')
    kind, index = _tf_config_task(task)
    if kind not in cluster and kind != "evaluator":
        have = ", ".join(f"{len(addresses)} {known}" for known, addresses in cluster.items()) or "no tasks"
        raise ConfigurationError(f'TF_CONFIG: the task is of type "{kind}", but the cluster has {have}')
    if kind in cluster and not 0 <= index < len(cluster[kind]):
        count = len(cluster[kind])
        raise ConfigurationError(
            f"TF_CONFIG: task index {shown(index)} is out of range; the cluster has {count} of type {kind}, "
            f"0 to {count - 1}"
        )
    if kind == "ps":
        raise ConfigurationError(
            f"TF_CONFIG: this process is the parameter server ps {index}, which is not needed: the ranks "
            "store the weights. Start only chief, workers and evaluator, and remove ps from the cluster"
        )
    if kind == "evaluator":
        return TfTask(kind, index, 0, ())
    ring = tuple(address for ring_kind in RING_TYPES for address in cluster.get(ring_kind, ()))
    if (ranks := same_address(ring)) is not None:
        first, second = ranks
        raise ConfigurationError(
            f"TF_CONFIG: {ring[first]} is the address of ranks {first} and {second}; use a different one for each task"
        )
    return TfTask(kind, index, index + (len(cluster.get("chief", ())) if kind == "worker" else 0), ring)


def _tf_config_json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ConfigurationError(f"TF_CONFIG is nested too deeply: {shown(text)}") from error
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise ConfigurationError(
            f"TF_CONFIG is not JSON: {error.msg} at line {error.lineno} column {error.colno}, near {near!r}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"TF_CONFIG has a number that is too long: {shown(text)}") from error


def _tf_config_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"TF_CONFIG: {name} is {shown(value)}; expected an object in braces")
    return value


def _tf_config_addresses(kind: str, value: Any) -> tuple[str, ...]:
    if kind not in KNOWN_TYPES:
        raise ConfigurationError(
            f'TF_CONFIG: the cluster has a task type "{shown(kind)}"; expected chief, worker, ps or evaluator'
        )
    if not isinstance(value, list) or not all(isinstance(address, str) for address in value):
        raise ConfigurationError(f'TF_CONFIG: cluster.{kind} is {quoted(value)}; expected a list of "host:port"')
    check_addresses(value, lambda index: f"TF_CONFIG: cluster.{kind}[{index}]")
    if kind == "chief" and len(value) > 1:
        raise ConfigurationError(f"TF_CONFIG: the cluster has {len(value)} chiefs; expected at most one")
    return tuple(value)


def _tf_config_task(task: dict[str, Any]) -> tuple[str, int]:
    kind, index = task["type"], task.get("index", 0)
    if kind not in KNOWN_TYPES:
        raise ConfigurationError(f"TF_CONFIG: task type is {quoted(kind)}; expected chief, worker, ps or evaluator")
    try:
        if isinstance(index, bool | float):
            raise ValueError
        return kind, int(index)  # some schedulers write the index as a string
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"TF_CONFIG: task index is {quoted(index)}; expected an integer from 0") from error
