"""The operator as an administrator has it: two replicas, an upgrade in the middle of a job, an uninstallation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.conftest import Kubectl, helm

CHART = Path(__file__).parents[2] / "charts" / "ringtrain-operator"
SYSTEM = Kubectl("ringtrain-system")
LONG = "300"  # epochs: longer than two operators take to be replaced, some 60 s on two cores


def upgrade(*values: str) -> None:
    """Upgrade the release that `make e2e` installed."""
    options = [f"--set={v}" for v in values]
    helm("upgrade", "ringtrain", str(CHART), "--namespace=ringtrain-system", "--reuse-values", "--wait", *options)


def leader() -> str:
    """The pod that holds the operator's lease; empty while none does."""
    return SYSTEM("get", "lease", "ringtrain-operator", "--output=jsonpath={.spec.holderIdentity}")


def test_upgraded_in_the_middle_of_a_job(kubectl: Any, digits: Callable[..., dict[str, Any]]) -> None:
    """A rollout to two replicas leaves a running job alone; a killed leader is replaced, and sees its end."""
    kubectl.apply(digits("--epochs", LONG))
    kubectl.wait("dtj", "digits", "condition=Running")
    first = leader()
    upgrade("replicas=2", "operator.logLevel=debug")
    kubectl.until(lambda: str(leader() not in ("", first)), says="True")
    second = leader()
    SYSTEM("delete", "pod", second, "--wait=false")
    kubectl.until(lambda: str(leader() not in ("", first, second)), says="True")
    status = kubectl.get("dtj", "digits")["status"]
    assert (status["state"], status["attempt"]) == ("Running", 1), "the job ended before the operator was replaced"
    kubectl.wait("dtj", "digits", "condition=Succeeded")
    status = kubectl.get("dtj", "digits")["status"]
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    upgrade("replicas=1", "operator.logLevel=info")


def test_uninstalled_without_loss(kubectl: Any, digits: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Uninstalling keeps the CRD and the jobs; installed again, the operator goes on with them."""
    kubectl.apply(digits("--epochs", "3"))
    kubectl.wait("dtj", "digits", "condition=Succeeded")
    values = helm("get", "values", "ringtrain", "--namespace=ringtrain-system", "--output=json")
    helm("uninstall", "ringtrain", "--namespace=ringtrain-system", "--wait")
    assert kubectl.get("dtj", "digits")["status"]["state"] == "Succeeded"
    kept = tmp_path / "values.json"
    kept.write_text(values)
    helm("install", "ringtrain", str(CHART), "--namespace=ringtrain-system", f"--values={kept}", "--wait")
    again = digits("--epochs", "3")
    again["metadata"]["name"] = "again"
    kubectl.apply(again)
    kubectl.wait("dtj", "again", "condition=Succeeded")
