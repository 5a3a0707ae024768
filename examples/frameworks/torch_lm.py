"""A transformer language model on the characters of a few sonnets, with the optimizer in host memory.

ringtrain run -np 2 -H localhost:2 python examples/frameworks/torch_lm.py
dtj local manifests/samples/torch-lm.yaml
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import ringtrain as rt
import ringtrain.torch as hvd
from ringtrain.checkpoint import Checkpoints, job_directory
from ringtrain.optim import AdamW, Warmup

TEXT = Path(__file__).with_name("sonnets.txt")


class LanguageModel(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, characters: int, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.output(self.blocks(x, mask=mask, is_causal=True))


def batch_of(
    text: torch.Tensor, context: int, size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(text) - context - 1, (size,), generator=generator)
    rows = torch.stack([text[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def perplexity(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Of the next character, averaged over the ranks' batches."""
    with torch.no_grad():
        own = functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
    return math.exp(float(hvd.allreduce(own)))


def resume(checkpoints: Checkpoints | None, model: nn.Module, optimizer: hvd.HostOptimizer) -> int:
    """Give everyone the weights and the state that rank 0 saved last; return the steps done by then."""
    saved = checkpoints.latest() if checkpoints else None
    if saved is None:
        return 0
    model.load_state_dict(saved.state["model"])
    optimizer.load_state_dict(saved.state["optimizer"])
    if hvd.rank() == 0:
        print(f"resumed from {saved.path} after {saved.step}", flush=True)
    return saved.step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations, and between checkpoints")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: the job's, if it keeps any")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    content = options.text.read_text()
    alphabet = sorted(set(content))
    text = torch.tensor([alphabet.index(character) for character in content])
    held_out = text[-len(text) // 10 :]
    text = text[: -len(held_out)]
    model = LanguageModel(len(alphabet), options.width, options.layers, options.context)
    optimizer = hvd.HostOptimizer(model, AdamW(lr=3e-3), clip_norm=1.0, schedule=Warmup(20, start=0.1))
    directory = options.checkpoint_dir or job_directory()
    checkpoints = Checkpoints(directory) if directory else None
    done = resume(checkpoints, model, optimizer)
    generator = torch.Generator().manual_seed(hvd.size() * done + hvd.rank())
    unseen = batch_of(held_out, options.context, 8, torch.Generator().manual_seed(hvd.rank()))
    for step in range(done, options.steps):
        inputs, targets = batch_of(text, options.context, options.batch_size, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        rt.report(step=step + 1, total_steps=options.steps, samples=len(inputs), loss=loss.item(), unit="sequences")
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            mean, score = float(hvd.allreduce(loss.detach())), perplexity(model, unseen)
            if hvd.rank() == 0:
                print(f"step {step + 1}/{options.steps}  loss {mean:.3f}  perplexity {score:.2f}", flush=True)
            if checkpoints:  # every rank gives its part of the state, and rank 0 writes
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(root=0)}
                checkpoints.save(step + 1, state)
    score = perplexity(model, unseen)
    if hvd.rank() == 0:
        print(f"held-out perplexity: {score:.2f} over {len(alphabet)} characters", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
