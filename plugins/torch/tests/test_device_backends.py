"""The backend of torch.distributed for the tensors of a device, and a group that it does not make."""

import threading

import pytest
from support.world_config import changed_config, world_config

DEVICES = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "hpu": "hccl"}


@pytest.mark.parametrize(
    ("transport", "device", "nccl", "backend"),
    [
        ("auto", "cuda", True, "nccl"),
        ("auto", "cuda", False, ""),
        ("auto", "cpu", True, ""),
        ("auto", "xpu", True, ""),
        *((other, "cuda", True, "") for other in ("host", "grpc", "shm", "mpi")),
        *(("torch", device, False, backend) for device, backend in DEVICES.items()),
        ("torch", "npu", False, "npu"),
    ],
)
def test_the_backend_of_a_device(transport, device, nccl, backend):
    """Only NCCL is selected by default, and only for CUDA; an explicit choice has priority."""
    from ringtrain_torch.devices import TorchBackends, torch_backend_for

    assert torch_backend_for(device, transport, False, TorchBackends(DEVICES, nccl)) == backend


def test_tensors_to_be_encrypted_are_not_given_to_nccl():
    from ringtrain_torch.devices import TorchBackends, torch_backend_for

    assert torch_backend_for("cuda", "auto", True, TorchBackends(DEVICES, True)) == ""
    within = world_config(size=3, encrypt="sites", sites=("x", "x", "y"))
    assert [within.encrypts_among(ranks) for ranks in ([0, 1], [2], [1, 2])] == [False, False, True]
    assert changed_config(within, encrypt="tensors").encrypts_among([0, 1])


def test_a_group_that_the_library_does_not_make_is_given_up():
    """The timeout ends the wait on all ranks, with an error that names the group, and releases the waiting thread."""
    from ringtrain_torch.device_store import TorchRoundsStore

    class Alone:
        ranks = (0,)

        def all_gather_parts(self, what, part):
            return [part]

    store = TorchRoundsStore()

    def make():
        with pytest.raises(RuntimeError, match=r"within 0\.05 s"):
            store.wait(["never set"])

    waits = threading.Thread(target=make)
    waits.start()
    assert store.exchange(Alone(), waits, [], timeout_s=0.05) == "rank 0: the library has made none within 0.05 s"
    waits.join(10)
    assert not waits.is_alive()
