"""Programs of others, and `dtj` as a user has it: with a kubeconfig and nothing else."""

import os
from pathlib import Path

import pytest
import yaml
from e2e.conftest import WORKER, Kubectl, job
from e2e.programs import MEETING

MPI = os.environ.get("E2E_MPI_IMAGE", "")


def mpi(image: str, *command: str) -> dict[str, object]:
    """An MPI job of two workers with two ranks each."""
    return job("pi", *command, image=image, backend="mpi", slotsPerWorker=2)


@pytest.mark.parametrize("whose", ["own", "foreign"])
def test_an_mpi_program(kubectl: Kubectl, whose: str) -> None:
    """Open MPI starts a C program on two workers without an sshd; in the other image nothing is Ringtrain's."""
    if whose == "foreign":
        if not MPI:
            pytest.skip("needs E2E_MPI_IMAGE, an image with Open MPI and examples/mpi/pi.c built as /pi")
        kubectl.apply(mpi(MPI, "/pi", "100000"))
    else:
        kubectl.apply(mpi(WORKER, "/opt/ringtrain/examples/mpi/pi", "100000"))
    status = kubectl.ended("pi")
    assert status["state"] == "Succeeded", status
    output = kubectl.dtj("logs", "pi")
    assert "pi is about 3.1" in output
    assert all(f"rank {rank} of 4" in output for rank in range(4))


def test_encrypted_tensors(kubectl: Kubectl) -> None:
    """Ranks of two pods meet over mutual TLS."""
    kubectl.apply(job("meeting", "python", "-c", MEETING, networking={"encryption": "tensors"}))
    assert kubectl.ended("meeting")["state"] == "Succeeded"


def test_a_job_by_dtj(kubectl: Kubectl, tmp_path: Path) -> None:
    """Submitted, watched, read and deleted by `dtj`; a mistake is named before anything is created."""
    kubeconfig = f"--kubeconfig={os.environ['KUBECONFIG']}"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job("meeting", "python", "-c", MEETING)))
    assert "meeting" in kubectl.dtj("submit", str(file), kubeconfig)
    assert "Succeeded" in kubectl.dtj("watch", "meeting", kubeconfig)
    assert "[1] rank 1 of 2" in kubectl.dtj("logs", "meeting", kubeconfig)
    assert "Succeeded" in kubectl.dtj("list", kubeconfig)
    assert "Succeeded" in kubectl.dtj("why", "meeting", kubeconfig)
    kubectl.dtj("delete", "meeting", kubeconfig)
    kubectl.wait("dtj", "meeting", "delete")
    file.write_text(yaml.safe_dump(job("wrong", workers=0)))
    with pytest.raises(AssertionError, match=r"replicas"):
        kubectl.dtj("submit", str(file), kubeconfig)
    assert kubectl("get", "dtj", "--output=name") == ""
