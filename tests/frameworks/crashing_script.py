"""A training script that raises, at a stage of its third step: run in worlds that are forked from this process.

    python -m frameworks.crashing_script shm grpc

prints a line of JSON for each world: its transport, the stage, who raised, and how every rank ended. The ranks end as
any script does: by an exception that nobody catches, through the whole end of the interpreter.
"""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence

import torch
from frameworks.warm import import_once
from support.deadlines import patient
from support.ports import free_addresses

import ringtrain.torch as hvd

STAGES = ("forward", "backward", "after-backward", "step", "after-step")
CULPRITS = {"one": (1,), "all": (0, 1)}
SIZE = 2
DEADLINE_S = patient(60)


class BugOfTheScript(Exception):
    """Error that the script raises."""


def train(stage: str, culprits: Sequence[int]) -> None:
    """Three steps, and in the last one the bug."""
    hvd.init()
    here = stage if hvd.rank() in culprits else ""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64) for _ in range(12)]
    model = torch.nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for step in range(3):
        now = here if step == 2 else ""
        if now == "backward":  # the layers above have their gradients, those below have not
            layers[6].weight.register_hook(lambda gradient: bug())
        if now == "step":
            optimizer.param_groups[0]["lr"] = _Bug()
        loss = model(torch.ones(8, 64)).sum()
        if now == "forward":
            bug()
        loss.backward()
        if now == "after-backward":
            bug()
        optimizer.step()
        optimizer.zero_grad()
        if now == "after-step":
            bug()
    hvd.allreduce(torch.ones(1))  # those who did not raise need the others once more


def bug() -> None:
    raise BugOfTheScript("the user's own")


class _Bug(float):
    """A learning rate that raises when a rule uses it."""

    def __neg__(self) -> float:
        raise BugOfTheScript("the user's own")


def main(transports: Sequence[str]) -> None:
    import_once("torch")
    for transport, stage in itertools.product(transports, STAGES):
        for who, culprits in CULPRITS.items():
            addresses = ",".join(free_addresses(SIZE))
            began = time.monotonic()
            ranks = []
            for rank in range(SIZE):
                pid = os.fork()
                if pid == 0:
                    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)  # ends a rank that hangs, and the test sees it
                    os.environ |= {
                        "RINGTRAIN_RANK": str(rank),
                        "RINGTRAIN_SIZE": str(SIZE),
                        "RINGTRAIN_RING_ADDRESSES": addresses,
                        "RINGTRAIN_TRANSPORT": transport,
                    }
                    train(stage, culprits)
                    return  # and so out of `main`, as a script ends
                ranks.append(pid)
            ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
            seconds = round(time.monotonic() - began, 1)
            print(
                json.dumps({"transport": transport, "stage": stage, "who": who, "ends": ends, "seconds": seconds}),
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
