"""Whole trainings with PyTorch that end in the middle and go on from a checkpoint: `torch_oracle` runs them."""

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_oracle import Run

RUN_IN = [
    {
        "framework": "ringtrain.torch",
        "ranks": [1, 3],
        "each": {"RINGTRAIN_TEST_OPTIMIZER": ["distributed", "host"], "RINGTRAIN_TRANSPORT": ["auto", "grpc"]},
        "pairs": True,
        "judge": "torch_oracle.run",
    },
    {
        "framework": "ringtrain.torch",
        "ranks": [2],
        "each": {"RINGTRAIN_TEST_OPTIMIZER": ["distributed", "host"], "RINGTRAIN_TRANSPORT": ["torch"]},
        "judge": "torch_oracle.run",
    },
]

Parts = dict[str, Any]


class Block(nn.Module):
    """Attention over what came before, and a perceptron, with weights and norms as in nanoGPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, tokens: int = 17, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width))
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.token.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.token(x) + self.place.weight))


def _resumed(r: Run, make: Callable[[], Parts], step: Callable[[Parts, Any, int], None], **data: Any) -> Any:
    """Train for eight steps; after the fourth, begin anew and go on from what was saved."""
    parts = make()
    for number, batch in enumerate(r.data(8, **data)):
        if number == 4:
            file = io.BytesIO()
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            file.seek(0)
            torch.manual_seed(11)
            parts, saved = make(), torch.load(file)
            for name, part in parts.items():
                part.load_state_dict(saved[name])
        step(parts, batch, number)
    return [part for part in parts.values() if isinstance(part, nn.Module)]


def test_nano_gpt(r: Run):
    def make() -> Parts:
        model = GPT()
        decayed = [param for param in model.parameters() if param.ndim > 1]
        rest = [param for param in model.parameters() if param.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = r.wrap(torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-6), model)
        return {
            "model": model,
            "optimizer": optimizer,
            "rate": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=9, cycle_momentum=False),
        }

    def step(parts: Parts, batch: Any, number: int) -> None:
        text = (batch[0].abs() * 10).long() % 17
        parts["optimizer"].zero_grad(set_to_none=True)
        logits = parts["model"](text[:, :-1])
        functional.cross_entropy(logits.reshape(-1, 17), text[:, 1:].reshape(-1)).backward()
        with r.whole_gradients(parts["optimizer"]):
            nn.utils.clip_grad_norm_(parts["model"].parameters(), 0.5)
            parts["optimizer"].step()
        parts["rate"].step()

    return _resumed(r, make, step, features=(7,))


def test_lstm_language_model(r: Run):
    def make() -> Parts:
        model = nn.ModuleDict({"in": nn.Embedding(17, 6), "lstm": nn.LSTM(6, 8, 2, batch_first=True)})
        model["out"] = nn.Linear(8, 17)
        optimizer = r.wrap(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), model)
        return {"model": model, "optimizer": optimizer, "rate": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)}

    def step(parts: Parts, batch: Any, number: int) -> None:
        text, model = (batch[0].abs() * 10).long() % 17, parts["model"]
        model.zero_grad()
        logits = model["out"](model["lstm"](model["in"](text[:, :-1]))[0])
        functional.cross_entropy(logits.reshape(-1, 17), text[:, 1:].reshape(-1)).backward()
        parts["optimizer"].step()
        parts["rate"].step()

    return _resumed(r, make, step, features=(9,))


def test_dcgan(r: Run):
    def make() -> Parts:
        generator = nn.Sequential(nn.ConvTranspose2d(4, 6, 4), nn.GroupNorm(2, 6), nn.Tanh())
        generator.append(nn.ConvTranspose2d(6, 1, 4, 2, 1))
        critic = nn.Sequential(nn.Conv2d(1, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 4), nn.Flatten(0))
        options = {"lr": 0.005, "betas": (0.5, 0.999), "eps": 1e-5}
        of_g = r.wrap(torch.optim.Adam(generator.parameters(), **options), generator)
        of_c = r.wrap(torch.optim.Adam(critic.parameters(), **options), critic)
        return {"generator": generator, "critic": critic, "of_g": of_g, "of_c": of_c}

    def step(parts: Parts, batch: Any, number: int) -> None:
        bce, critic = functional.binary_cross_entropy_with_logits, parts["critic"]
        noise, real = batch[1].view(-1, 4, 1, 1), batch[0]
        one = torch.ones(len(real))
        critic.zero_grad()
        bce(critic(real), one).backward()
        fake = parts["generator"](noise)
        bce(critic(fake.detach()), 0 * one).backward()
        parts["of_c"].step()
        parts["generator"].zero_grad()
        bce(critic(fake), one).backward()
        parts["of_g"].step()

    return _resumed(r, make, step, features=(1, 8, 8), targets=4)
