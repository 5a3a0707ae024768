"""In the shape of Horovod's elastic example for PyTorch: epoch and batch in the state, a commit after each batch.

It trains until the file in its argument exists. Each batch takes 1 from the weight.
"""

import os
import sys
import time

import torch

import ringtrain.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
rate = 0.5
optimizer = torch.optim.SGD(model.parameters(), lr=rate * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
EPOCH = 5


@hvd.elastic.run
def train(state):
    while not hvd.broadcast_object(os.path.exists(sys.argv[1]), 0):
        for _ in range(EPOCH - state.batch):
            time.sleep(0.05)  # newcomers take seconds to import PyTorch, and need the processors meanwhile
            state.optimizer.zero_grad()
            state.model(torch.ones(4, 1) / (rate * hvd.size())).mean().backward()
            state.optimizer.step()
            state.batch += 1
            state.commit()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch} batch {state.batch} of {hvd.size()} ranks", flush=True)
        state.epoch, state.batch = state.epoch + 1, 0


def on_state_reset():
    for group in optimizer.param_groups:
        group["lr"] = rate * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
print(f"{state.epoch * EPOCH} batches, weight {model.weight.item():g}", flush=True)
