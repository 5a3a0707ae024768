"""ResNet-50 on made-up images: how many a second?

    ringtrain run -np 2 -H localhost:2 python examples/frameworks/torch_resnet.py
    dtj local manifests/samples/torch-resnet.yaml

He, Zhang, Ren & Sun 2016, "Deep residual learning for image recognition", with the stride on the 3 x 3
convolution.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.optim import SGD

STAGES = {"resnet50": (3, 4, 6, 3), "resnet14": (1, 1, 1, 1)}


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = stride == 1 and inputs == 4 * width
        shortcut = [nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)]
        self.shortcut = nn.Identity() if same else nn.Sequential(*shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(stages: tuple[int, ...], width: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(STAGES), default="resnet50")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank and step")
    parser.add_argument("--warmup", type=int, default=1, help="batches before the clock starts")
    parser.add_argument("--iterations", type=int, default=5, help="measurements")
    parser.add_argument("--batches", type=int, default=2, help="batches of each measurement")
    parser.add_argument("--host-optimizer", action="store_true", help="keep the optimizer in host memory")
    options = parser.parse_args()
    hvd.init()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)  # pinned memory too is made on the current device
    model = resnet(STAGES[options.model], options.width, 1000).to(device)
    if options.host_optimizer:
        optimizer = hvd.HostOptimizer(model, SGD(lr=0.01, momentum=0.9))
    else:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size, device=device)
    labels = torch.randint(1000, (options.batch_size,), device=device)

    def train_batch() -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(options.warmup):
        train_batch()
    rates = []
    for iteration in range(options.iterations):
        begin = time.perf_counter()
        for _ in range(options.batches):
            loss = train_batch()
        rates.append(options.batch_size * options.batches / (time.perf_counter() - begin))
        samples = options.batch_size * options.batches
        rt.report(step=iteration + 1, total_steps=options.iterations, samples=samples, loss=loss, unit="images")
        if hvd.rank() == 0:
            print(f"iteration {iteration + 1}: {rates[-1]:.1f} images/sec per rank", flush=True)
    total = float(hvd.allreduce(torch.tensor(float(np.mean(rates))), op=hvd.Sum))
    if hvd.rank() == 0:
        spread = 1.96 * float(np.std(rates))
        print(f"images/sec per rank: {np.mean(rates):.1f} +/- {spread:.1f}")
        print(f"total images/sec on {hvd.size()} ranks: {total:.1f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
