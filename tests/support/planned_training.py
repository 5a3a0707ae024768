"""A training whose world changes by plan, for ranks of an elastic job under test.

It writes what it has used at each step into its state, and makes `step-<number>` in `DIRECTORY` before a commit.
`KIND`: what keeps the weights, a key of `KINDS` or `module:name`. Gradients are sums of small integers over samples, so
the weights follow from the samples alone, to the bit: neither the number of ranks nor the order of the changes has a
part in them.

`holds.json` in `DIRECTORY`, if there is one, has the hosts of ranks, by the step that does not begin before the
world is just these.

Each process writes a line a world to `events-<slot>-<pid>`, and at the end `end-<slot>.json`.
"""

import importlib
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import ringtrain as rt
from support.elastic_training import BATCH, SAMPLES, SEED, digest_of, gradient

STEPS = 60
STEP_S = 0.02
DIRECTORY = Path(os.environ.get("DIRECTORY", "."))
KIND = os.environ.get("KIND", "host")
SHAPES = {"one": 700, "two": 1300}


class Kept(Protocol):
    """Weights and what trains them."""

    values: dict[str, Any]
    in_torch: bool  # whether the state is a TorchState

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]: ...

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> bool | None:
        """Whether it is time for a commit; None: it is, as always."""


def _start() -> dict[str, np.ndarray[Any, Any]]:
    return {"one": np.full(SHAPES["one"], 0.5, np.float32), "two": np.zeros(SHAPES["two"], np.float32)}


class OnHost:
    """Ringtrain's own optimizer. `local`: parameters that each rank trains by itself. `copies`: of shards."""

    in_torch = False

    def __init__(self, local: Sequence[str] = (), copies: int = 1) -> None:
        options: dict[str, Any] = {"bucket_bytes": 4096, "local": local, "elastic": True, "redundancy": copies}
        optimizer = rt.optim.HostOptimizer(_start(), rt.optim.Adam(lr=0.01), **options)
        self.values = {"optimizer": optimizer}

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        return dict(state.optimizer.weights)

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> None:
        for name, found in gradients.items():
            state.optimizer.submit(name, found, float(rt.size()))
        state.optimizer.step()


class OnArrays:
    """Plain arrays in the state, and a sum over ranks."""

    in_torch = False

    def __init__(self) -> None:
        self.values = {"arrays": _start()}

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        return dict(state.arrays)

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> None:
        for name, found in gradients.items():
            state.arrays[name] -= np.float32(0.01) * rt.allreduce(found, op=rt.Sum)


class InTorch:
    """A module with a `HostOptimizer` or a `DistributedOptimizer`."""

    in_torch = True

    def __init__(self, host: bool) -> None:
        import torch

        import ringtrain.torch as hvd

        torch.set_num_threads(1)
        self._host = host
        self.model = torch.nn.Module()
        for name, start in _start().items():
            self.model.register_parameter(name, torch.nn.Parameter(torch.from_numpy(start)))
        optimizer: Any
        if host:
            optimizer = hvd.HostOptimizer(self.model, rt.optim.Adam(lr=0.01), elastic=True)
        else:
            plain = torch.optim.Adam(self.model.parameters(), lr=0.01)
            named = self.model.named_parameters()
            optimizer = hvd.DistributedOptimizer(plain, named_parameters=named, op=hvd.Sum)
        self.values = {"model": self.model, "optimizer": optimizer}

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {name: value.detach().numpy() for name, value in self.model.named_parameters()}

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> None:
        import torch

        factor = float(rt.size()) if self._host else 1.0  # one averages, the other adds up
        state.optimizer.zero_grad()
        parts = [
            (value * torch.from_numpy(gradients[name])).sum() * factor for name, value in self.model.named_parameters()
        ]
        torch.stack(parts).sum().backward()
        state.optimizer.step()


class InKeras:
    """Variables of a Keras model and an optimizer of Keras."""

    in_torch = False

    def __init__(self) -> None:
        import keras

        class Model(keras.Model):  # type: ignore[misc]
            def build(self, shape: Any) -> None:
                self.parts = {
                    name: self.add_weight(shape=start.shape, initializer="zeros", name=name)
                    for name, start in _start().items()
                }

            def call(self, inputs: Any) -> Any:
                return inputs

        self.model = Model()
        self.model.build((1,))
        for name, start in _start().items():
            self.model.parts[name].assign(start)
        self.model.optimizer = keras.optimizers.SGD(0.01, momentum=0.5)
        self.model.optimizer.build(self.model.trainable_variables)
        self.values = {"model": self.model}

    def weights(self, state: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {name: np.asarray(value.numpy()) for name, value in self.model.parts.items()}

    def update(self, gradients: dict[str, np.ndarray[Any, Any]], state: Any) -> None:
        summed = [rt.allreduce(gradients[name], op=rt.Sum) for name in self.model.parts]
        self.model.optimizer.apply(summed, list(self.model.parts.values()))


KINDS = {
    "host-local": lambda: OnHost(local=["two"]),
    "host": OnHost,
    "host-two-copies": lambda: OnHost(copies=2),
    "arrays": OnArrays,
    "torch-host": lambda: InTorch(host=True),
    "torch": lambda: InTorch(host=False),
    "keras": InKeras,
}


def _kept() -> Kept:
    """Make what `KIND` names."""
    module, _, name = KIND.rpartition(":")
    make: Any = getattr(importlib.import_module(module), name) if module else KINDS[KIND]
    kept: Kept = make()
    return kept


def _state_of(kept: Any, shard: Any) -> tuple[Any, Any]:
    """The state, and what runs a function with it."""
    more = {"shard": shard, "step": 0, "ledger": []}
    if kept.in_torch:
        import ringtrain.torch as torch_hvd

        return torch_hvd.elastic.TorchState(**kept.values, **more), torch_hvd.elastic.run
    if KIND == "keras":
        import ringtrain.keras as keras_hvd

        return keras_hvd.elastic.KerasState(kept.model, optimizer=kept.model.optimizer, **more), keras_hvd.elastic.run
    return rt.elastic.State(**kept.values, **more), rt.elastic.run


def tell(**what: Any) -> None:
    """Write down what has happened in this process."""
    slot = os.environ.get("RINGTRAIN_SLOT", "0")
    with (DIRECTORY / f"events-{slot}-{os.getpid()}").open("a") as file:
        file.write(json.dumps(what) + "\n")


def hold(state: Any, step: int) -> None:
    """Wait until the world is the one with which `step` is to be made."""
    path = DIRECTORY / "holds.json"
    wanted = json.loads(path.read_text()).get(str(step)) if path.exists() else None
    while wanted is not None:
        here = sorted(rt.allgather_object(socket.gethostname()))
        if here == sorted(wanted):
            return
        time.sleep(STEP_S)
        state.check_host_updates()


def train(state: Any, kept: Any, reached: dict[str, int]) -> None:
    """All steps that are left."""
    tell(
        entered=int(os.environ.get("RINGTRAIN_FORMATION", "0")), step=state.step, size=rt.size(),
        redone=max(0, reached["step"] - state.step),
    )  # fmt: skip
    hold(state, state.step + 1)  # no batch is under way
    while state.step < STEPS:
        for batch in state.shard:
            reached["step"] = state.step + 1
            is_due = kept.update({name: gradient(kept.weights(state)[name], batch) for name in ("two", "one")}, state)
            used = rt.allgather_object(batch.indices[batch.mask].tolist())
            text = ",".join(str(index) for index in sorted(index for part in used for index in part))
            state.step += 1
            state.ledger.append(f"{state.step} {state.shard.epoch} {text}")
            time.sleep(STEP_S)
            if rt.rank() == 0:
                (DIRECTORY / f"step-{state.step}").touch()
            if is_due is not False:
                state.commit()
            hold(state, state.step + 1)
            if state.step == STEPS:
                return
        state.shard.next_epoch()


def main() -> None:
    rt.init()
    kept = _kept()
    state, run = _state_of(kept, rt.elastic.shard(SAMPLES, rt.elastic.FixedGlobal(BATCH), seed=SEED))
    reached = {"step": 0}
    run(lambda state: train(state, kept, reached))(state)
    slot = os.environ.get("RINGTRAIN_SLOT", "0")
    end = {"ledger": state.ledger, "digest": digest_of(kept.weights(state))}
    (DIRECTORY / f"end-{slot}.json").write_text(json.dumps(end))
    tell(ended=state.step)


if __name__ == "__main__":
    main()
