"""A tiny language model and its Trainer. As a program: trains it with transformers' own in one process, in each of
the ways of ALONE."""

import sys
from pathlib import Path

import torch

ROWS, TOGETHER, EPOCHS = 54, 6, 2  # nine steps an epoch

# By name: arguments, and how often it trains.
ALONE = {
    "as usual": ({}, 1),
    "clipped": ({"max_grad_norm": 0.5, "lr_scheduler_type": "linear"}, 1),
    "accumulated": ({"gradient_accumulation_steps": 2}, 1),
    "twice": ({"max_grad_norm": 0.0}, 2),
}


def model():
    """A language model of GPT-2's kind, with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def trainer_of(kind, folder, ranks: int, arguments, net=None, **more):
    from transformers import TrainingArguments

    words = torch.randint(0, 32, (ROWS, 8), generator=torch.Generator().manual_seed(1))
    told = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        learning_rate=1e-2,
        weight_decay=0.1,
        adam_epsilon=1e-4,  # gradients that are zero but for rounding move nothing
        per_device_train_batch_size=TOGETHER // ranks,
        report_to="none",
        disable_tqdm=True,
        logging_steps=3,
        **arguments,
    )
    return kind(net or model(), told, train_dataset=[{"input_ids": row, "labels": row} for row in words], **more)


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def train_alone(folder) -> None:
    from transformers import Trainer

    for name, (arguments, trainings) in ALONE.items():
        trainer = trainer_of(Trainer, folder, 1, {**arguments, "save_strategy": "no"})
        for _ in range(trainings):
            trainer.train()
        torch.save({"weights": trainer.model.state_dict(), "losses": losses(trainer)}, Path(folder) / f"{name}.pt")


if __name__ == "__main__":
    train_alone(sys.argv[1])
