"""Addresses for pods: a block of loopback that no other kubelet on this machine has at the same time."""

import itertools
import random
import socket

# Nobody serves it: to have it bound on a block's last address is to have the block.
CLAIM_PORT = 7349
PODS_IN_BLOCK = 250 * 250


class AddressBlock:
    """One of the 127.x.0.0/16, this process's own until `close()`.

    Pods listen on the contract's ports; with addresses in common, two test runs on one machine would take each
    other's ports, and an operator would ask the other run's launcher.
    """

    def __init__(self) -> None:
        self._claim, self._block = _claim_block()
        self._numbers = itertools.count()

    def next(self) -> str:
        """An address that was not given before (after 62,500: the first again)."""
        number = next(self._numbers) % PODS_IN_BLOCK
        return f"127.{self._block}.{number // 250}.{number % 250 + 2}"

    def close(self) -> None:
        """Leave the block to others."""
        self._claim.close()


def _claim_block() -> tuple[socket.socket, int]:
    for block in random.sample(range(1, 255), 254):
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((f"127.{block}.255.254", CLAIM_PORT))
        except OSError:
            claim.close()
        else:
            return claim, block
    raise OSError("every block of loopback addresses is taken: are 254 kubelets running here?")
