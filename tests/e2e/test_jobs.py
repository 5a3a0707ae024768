"""Jobs as a user sees them, on a cluster with real nodes."""

import json
from collections.abc import Callable
from typing import Any

Digits = Callable[..., dict[str, Any]]


def test_the_sample_trains(kubectl: Any, digits: Digits) -> None:
    """Applied, it succeeds; its log has the accuracy, its table the progress, its events the story."""
    kubectl.apply(digits("--epochs", "3"))
    kubectl.wait("dtj", "digits", "condition=Succeeded")
    assert "test accuracy" in kubectl("logs", "digits-launcher")
    table = kubectl("get", "dtj", "digits")
    assert "Succeeded" in table
    assert "PROGRESS" in table
    assert "AllRanksSucceeded" in kubectl("describe", "dtj", "digits")
    assert "test accuracy" in kubectl.dtj("logs", "digits")
    assert "digits" in kubectl.dtj("list")


def test_one_rank_is_read_while_it_runs(kubectl: Any, digits: Digits) -> None:
    """Rank 0 is the one that prints; its log has no other rank's mark."""
    kubectl.apply(digits("--epochs", "200"))
    kubectl.wait("dtj", "digits", "condition=Running")
    output = kubectl.until(lambda: kubectl.dtj("logs", "digits", "--rank=0"), says="epoch")
    assert "[0]" not in output
    kubectl("delete", "dtj", "digits")


def test_a_killed_worker_is_a_new_attempt(kubectl: Any, digits: Digits) -> None:
    """A pod deleted under a running job: the gang restarts, uncounted, and ends well."""
    kubectl.apply(digits("--epochs", "200"))
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl("delete", "pod", "digits-worker-1", "--wait=false")
    kubectl.wait("dtj", "digits", "jsonpath={.status.attempt}=2")
    assert kubectl.get("dtj", "digits")["status"]["restarts"] == 0
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl("delete", "dtj", "digits")


def test_data_workers_are_replaced_one_by_one(kubectl: Any, digits: Digits) -> None:
    """One that is deleted comes back while the ranks train on; at the end none is left."""
    kubectl.apply(digits("--epochs", "60", sample="digits-data"))
    kubectl.wait("dtj", "digits-served", "jsonpath={.status.dataWorkers.ready}=2")
    kubectl.wait("dtj", "digits-served", "condition=Running")
    before = kubectl.get("pod", "digits-served-data-1")["metadata"]["uid"]
    kubectl("delete", "pod", "digits-served-data-1")

    def uid() -> str:
        found = kubectl("get", "pod", "digits-served-data-1", "--output=jsonpath={.metadata.uid}", check=False)
        return "another" if found not in ("", before) else ""

    kubectl.until(uid, says="another")
    kubectl.wait("dtj", "digits-served", "condition=Succeeded")
    status = kubectl.get("dtj", "digits-served")["status"]
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (1, 0, 0)
    kubectl.wait("pod", "digits-served-data-1", "delete")
    assert "test accuracy" in kubectl.dtj("logs", "digits-served")


def test_suspended_and_resumed(kubectl: Any, digits: Digits) -> None:
    """Its pods go, and come back."""
    kubectl.apply(digits("--epochs", "200"))
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl.dtj("suspend", "digits")
    kubectl.wait("dtj", "digits", "condition=Suspended")
    kubectl.wait("pod", "digits-launcher", "delete")
    kubectl.dtj("resume", "digits")
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl("delete", "dtj", "digits")


def test_scaled_by_kubectl(kubectl: Any, digits: Digits) -> None:
    """`kubectl scale` is a new attempt with the new world."""
    kubectl.apply(digits("--epochs", "200"))
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl("scale", "dtj", "digits", "--replicas=3")
    kubectl.wait("dtj", "digits", "jsonpath={.status.attempt}=2")
    kubectl.wait("dtj", "digits", "condition=Running")
    kubectl.get("pod", "digits-worker-2")
    kubectl("delete", "dtj", "digits")


def test_what_cannot_run_says_why(kubectl: Any, digits: Digits) -> None:
    """An image that is not there is in the condition and in `dtj why`."""
    job = digits()
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["image"] = "registry.invalid/missing:1"
    kubectl.apply(job)
    kubectl.wait("dtj", "digits", "condition=Running=False")
    kubectl.until(lambda: kubectl.dtj("why", "digits"), says="registry.invalid/missing:1")


def test_a_rejected_spec_names_the_field(kubectl: Any, digits: Digits) -> None:
    """Admission refuses what the CRD can know."""
    job = digits()
    job["spec"]["worker"]["replicas"] = -1
    assert kubectl("apply", "--filename=-", check=False, stdin=json.dumps(job)) == ""
