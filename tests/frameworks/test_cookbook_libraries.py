"""Run the cookbook's recipes for libraries on PyTorch, as test_cookbook_recipes.py does those for PyTorch alone."""

import os

from support.ports import free_addresses
from test_cookbook_recipes import RANK, SIZE, STEPS, as_on_one_rank, run, shared_folder

import ringtrain.torch as hvd

# Their server has both, so that they are imported once and not in each rank.
RUN_IN = [
    {
        "framework": "frameworks.torch_libraries",
        "ranks": [1, 2],
        "needs": ["lightning"],
        "tests": ["test_pytorch_lightning"],
    },
    {
        "framework": "frameworks.torch_libraries",
        "ranks": [1, 2],
        "needs": ["transformers", "accelerate"],
        "tests": ["test_hugging_face_s_trainer"],
    },
]


def test_pytorch_lightning():
    with shared_folder():
        names = run("pytorch_lightning")
    assert names["trainer"].global_step == 2 * STEPS
    as_on_one_rank("pytorch_lightning", names["model"])


def test_hugging_face_s_trainer():
    host, port = hvd.broadcast_object(free_addresses(1)[0] if RANK == 0 else None, 0).rsplit(":", 1)
    if SIZE > 1:  # what the agent gives a rank
        os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(SIZE)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(SIZE), "MASTER_ADDR": host, "MASTER_PORT": port}
    with shared_folder():
        names = run("hugging_face_s_trainer")
        assert names["trainer"].state.global_step == 2 * STEPS
        as_on_one_rank("hugging_face_s_trainer", names["model"], tolerance=1e-4)
