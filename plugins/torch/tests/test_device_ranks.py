"""Scenarios of RINGTRAIN_TRANSPORT=torch, over gloo: ranks that are lost, that choose otherwise, and in pods."""

import functools
import logging
import multiprocessing
import os
import re
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from support.pods import Pods
from support.ranks import run_ranks, started_ranks
from support.world_config import changed_config

import ringtrain.torch as hvd
from ringtrain._core.negotiation.queues import queue_of
from ringtrain._core.negotiation.request import CollectiveKind, NamedRequest
from ringtrain._core.process_groups.context import current
from ringtrain.errors import MismatchError, NotInitializedError, PeerLost
from ringtrain.optim import SGD
from ringtrain_torch.device_groups import TorchDeviceGroups

RUN_IN = {"framework": "ringtrain.torch"}

LONG = 16 << 20  # elements: many times as long as a thread takes to look
TIMEOUT_S = 20
PROMPT_S = 8  # a fifth of the timeout passes where ranks blame each other
OVER_TORCH = {"RINGTRAIN_TRANSPORT": "torch"}
FORK = multiprocessing.get_context("fork")
forked = functools.partial(run_ranks, context=FORK)


def lose_one_in_mid_reduction(victim: int, number: int) -> tuple[str, str, float, bool]:
    """Return the other ranks' error, their activity at that time, the seconds until then, and whether the group has
    ended."""
    hvd.init()
    hvd.allreduce(torch.ones(1))
    offers, groups = current()._member.offers, current().attached(TorchDeviceGroups, TorchDeviceGroups)

    def end_in_mid_reduction() -> None:
        while "is in device_allreduce" not in offers.activity():
            pass
        os.kill(os.getpid(), number)

    if hvd.rank() == victim:
        threading.Thread(target=end_in_mid_reduction, daemon=True).start()
    began = time.monotonic()
    try:
        hvd.allreduce(torch.ones(LONG))
    except PeerLost as error:
        return str(error), offers.activity(), time.monotonic() - began, not groups.in_use()
    raise AssertionError("nobody was lost")


def named_within_the_timeout(number):
    """The library would wait for it for ever: its group is aborted."""
    env = {**OVER_TORCH, "RINGTRAIN_TIMEOUT": str(TIMEOUT_S)}
    with started_ranks(lose_one_in_mid_reduction, 3, 1, number, env=env, context=FORK) as ranks:
        lost = ranks.outcomes(ranks=[0, 2])
    assert [one.error for one in lost] == [None, None]
    for message, activity, seconds, ended in (one.value for one in lost):
        assert "rank 1" in message
        assert "is in device_allreduce" in activity
        assert seconds < TIMEOUT_S
        assert ended


def test_a_rank_killed_in_mid_reduction_is_named_within_the_timeout():
    named_within_the_timeout(signal.SIGKILL)


def test_a_rank_stopped_in_mid_reduction_is_named_within_the_timeout():
    named_within_the_timeout(signal.SIGSTOP)


def leave_before_the_second_of_two(leaver: int) -> tuple[str, float]:
    """Agree on two reductions, of which `leaver` takes part in the first; return this rank's error and the seconds
    until then."""
    hvd.init()
    hvd.allreduce(torch.ones(1))  # makes the group
    queue = queue_of(hvd.global_process_set)
    began = time.monotonic()

    def submit_both(_: object):  # on the queue's thread: they are agreed on in one round
        barrier = NamedRequest(CollectiveKind.BARRIER, "first")
        queue.submit(barrier, finish=lambda _: queue.stop() if hvd.rank() == leaver else None)
        return hvd.allreduce_async(torch.ones(2), name="second")

    try:
        both = queue.submit(NamedRequest(CollectiveKind.BARRIER, "both"), finish=submit_both)
        return f"summed to {hvd.synchronize(both.result(60))}", time.monotonic() - began
    except (NotInitializedError, PeerLost) as error:
        return str(error), time.monotonic() - began
    finally:
        if hvd.rank() == leaver:
            queue.wait_stopped(60)
            hvd.shutdown()


def test_a_rank_that_shuts_down_before_a_reduction_is_named_at_once():
    """The other ranks do not blame each other, whatever error the library reports."""
    env = {**OVER_TORCH, "RINGTRAIN_TIMEOUT": "60"}
    told = forked(leave_before_the_second_of_two, 3, 1, env=env)
    needed = r"rank 1 has shut down, and rank \d needs it for device_allreduce #\d+ on 'allreduce.second'"
    for message, seconds in told[:1] + told[2:]:
        assert re.match(needed, message)
        assert seconds < PROMPT_S


def lose_one_in_mid_step(victim: int) -> tuple[str, str]:
    """Let a rank end while a node's devices add gradients; return the other ranks' error and their activity at that
    time."""
    hvd.init()
    net = torch.nn.Linear(LONG // 4, 4, bias=False)
    optimizer = hvd.HostOptimizer(net, SGD(1.0))
    offers = current()._member.offers

    def end_in_mid_step() -> None:
        while "is in device_alltoall" not in offers.activity():
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    if hvd.rank() == victim:
        threading.Thread(target=end_in_mid_step, daemon=True).start()
    try:
        for _ in range(1000):
            net(torch.ones(1, LONG // 4)).sum().backward()
            optimizer.step()
    except PeerLost as error:
        return str(error), offers.activity()
    raise AssertionError("nobody was lost")


def test_a_rank_lost_while_a_node_adds_up_is_named():
    """The library is not waited for, nor is the ring."""
    env = {**OVER_TORCH, "RINGTRAIN_TIMEOUT": str(TIMEOUT_S)}
    with started_ranks(lose_one_in_mid_step, 3, 1, env=env, context=FORK) as ranks:
        lost = ranks.outcomes(ranks=[0, 2])
    assert [one.error for one in lost] == [None, None]
    assert all("rank 1" in one.value[0] for one in lost)
    assert any("is in device_all" in one.value[1] for one in lost)


def reduce_over(transports: list[str]) -> str:
    """Reduce with another transport on each rank, as if one rank had no backend for its device; return the error."""
    hvd.init()
    current().config = changed_config(current().config, transport=transports[hvd.rank()])
    try:
        hvd.allreduce(torch.ones(1), name="weight")
    except MismatchError as error:
        return str(error)
    return ""


def test_ranks_that_chose_differently_hear_of_it():
    """The error on all ranks contains both choices."""
    expected = "device is cpu through gloo on rank 0 and cpu on rank 1"
    assert all(expected in said for said in forked(reduce_over, 2, ["torch", "auto"]))


def groups_by_name() -> tuple[float, bool, list[str]]:
    """Return a sum over a plugin's backend, whether a missing backend that was not selected is None, and the log
    lines."""

    def of_plugin(store, rank, size, timeout):
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return dist.ProcessGroupGloo(store, rank, size, options)

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage()) if record.levelno > logging.DEBUG else None
    logging.getLogger("ringtrain").addHandler(handler)
    logging.getLogger("ringtrain").setLevel(logging.INFO)
    dist.Backend.register_backend("plugged", of_plugin, devices=["cpu"])
    dist.Backend.default_device_backend_map["cpu"] = "plugged"
    hvd.init()
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    world = current()
    world.config = changed_config(world.config, transport="auto")
    absent = TorchDeviceGroups().of(world, 0, world.group().communicator, torch.device("cpu"), "nccl")
    return total, absent is None, said


def test_a_backend_is_found_by_its_name_or_not_at_all():
    """A plugin's backend is used if selected; if NCCL is missing in this build and not selected, tensors use host
    memory on all ranks. One line of one rank reports either."""
    first, second = forked(groups_by_name, 2, env=OVER_TORCH)
    assert [first[:2], second[:2]] == [(2.0, True), (2.0, True)]
    assert not second[2]
    chosen, refused = first[2]
    assert "torch.distributed's plugged reduces tensors on cpu among 2 ranks" in chosen
    assert "no process group of nccl" in refused
    assert "they are sent through host memory" in refused


def train_in_pods(steps: int) -> tuple[bool, float]:
    """Return whether nodes computed sums, and all trained weights."""
    hvd.init()
    net = torch.nn.Linear(700, 3, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.0)
    optimizer = hvd.HostOptimizer(net, SGD(1.0))
    for step in range(steps):
        net(torch.full((1, 700), float((hvd.rank() + 1) * (step + 1)))).sum().backward()
        optimizer.step()
    optimizer.synchronize()
    assert net.weight.unique().numel() == 1
    optimizer.state_dict()  # brings what the devices have to the host
    part = optimizer.shard_dict()["arrays"]["weights"]["weight"]
    assert (part.values == net.weight[0, 0].item()).all()
    return optimizer.takes_node_sums, net.weight[0, 0].item()


def test_pods_reduce_what_their_devices_have_added_up():
    """Means of integers, which no order of sums changes."""
    for pods in (2, 3):
        size = 2 * pods
        said = forked(train_in_pods, size, 3, env=OVER_TORCH, env_of=Pods(pods))
        mean = sum(range(1, size + 1)) / size
        assert said == [(True, pytest.approx(-6 * mean))] * size
