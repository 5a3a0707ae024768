"""DistributedTrainingJobs for tests of the operator."""

from pathlib import Path
from typing import Any

from ringtrain_operator import contract

Json = dict[str, Any]


def job(name: str = "digits", *, workers: int = 2, **spec: Any) -> Json:
    """Return a small valid job. `spec` is merged into its spec."""
    template = {"spec": {"containers": [{"name": "train", "image": "train:1", "command": ["train"]}]}}
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": name},
        "spec": {"worker": {"replicas": workers, "template": template}, **spec},
    }


def python_job(name: str, program: str, go_on: Path, *, workers: int = 1, **spec: Any) -> Json:
    """Return a job whose ranks run the Python code `program`. GO_ON has the path of `go_on`."""
    made = job(name, workers=workers, **spec)
    container = made["spec"]["worker"]["template"]["spec"]["containers"][0]
    told = {"command": ["python", "-c", program], "env": [{"name": "GO_ON", "value": str(go_on)}]}
    container.update(image="worker", **told)
    return made


def workers_with_devices(count: int) -> Json:
    """Return the worker part of a spec: two workers with `count` devices each."""
    return {**job()["spec"]["worker"], "devices": {"nvidia.com/gpu": count}}


def termination_message(outcome: str = "Succeeded", attempt: int = 1, world: int = 2, **failure: Any) -> str:
    """Return the termination message of a launcher (docs/contract.md)."""
    import json

    message: Json = {
        "version": 1,
        "attempt": attempt,
        "outcome": outcome,
        "worldSize": world,
        "ranksSucceeded": world if outcome == "Succeeded" else 0,
    }
    if failure:
        message["failure"] = failure
    return json.dumps(message)


def state(obj: Json | None) -> str:
    """Return the state in a job's status."""
    return str(((obj or {}).get("status") or {}).get("state") or "")


def condition(obj: Json, kind: str) -> Json:
    """Return one condition of a job; an empty dict if it does not exist."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})
