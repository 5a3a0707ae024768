"""The language model of torch_lm.py over a slow link: ranks train alone, and average every --sync-every steps.

ringtrain run -np 2 -H localhost:2 python examples/frameworks/torch_diloco.py
dtj local manifests/samples/torch-diloco.yaml
"""

import argparse

import torch
from torch.nn import functional
from torch_lm import TEXT, LanguageModel, batch_of, perplexity

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.optim import Nesterov


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sync-every", type=int, default=20, help="inner steps between synchronizations")
    parser.add_argument("--fragments", type=int, default=2, help="parts that are synchronized in turns")
    parser.add_argument("--overlap-steps", type=int, default=2, help="inner steps beside an exchange")
    parser.add_argument("--compression", choices=["bf16", "fp16", "int8"])
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    content = TEXT.read_text()
    alphabet = sorted(set(content))
    text = torch.tensor([alphabet.index(character) for character in content])
    held_out = text[-len(text) // 10 :]
    model = LanguageModel(len(alphabet), 64, 2, 64)
    optimizer = hvd.DiLoCo(
        model,
        inner=torch.optim.AdamW(model.parameters(), lr=3e-3),
        outer=Nesterov(lr=0.7, momentum=0.5),
        sync_every=options.sync_every,
        fragments=options.fragments,
        overlap_steps=options.overlap_steps,
        compression=options.compression,
    )
    generator = torch.Generator().manual_seed(hvd.rank())  # each rank its own part of the data
    for step in range(options.steps):
        inputs, targets = batch_of(text[: -len(held_out)], 64, 16, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rt.report(step=step + 1, total_steps=options.steps, samples=len(inputs), loss=loss.item())
    optimizer.finish()  # from here on all ranks have the same model
    score = perplexity(model, batch_of(held_out, 64, 8, torch.Generator().manual_seed(0)))
    outer = optimizer.outer
    if hvd.rank() == 0:
        print(
            f"held-out perplexity: {score:.2f} over {len(alphabet)} characters, after {outer.synchronizations} "
            f"exchanges of {outer.sync_bytes / options.fragments / 1e3:.0f} kB, hidden {outer.hidden_share:.0%}",
            flush=True,
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
