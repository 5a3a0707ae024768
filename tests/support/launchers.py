"""Commands that start a launcher of ranks, with its name, and others: for the operator and `ringtrain run`."""

LAUNCHERS = [
    (["torchrun", "--nproc_per_node=2", "train.py"], "torchrun"),
    (["/opt/bin/torchrun", "--standalone", "train.py"], "torchrun"),
    (["torchrun", "--nnodes=1", "--rdzv-backend=c10d", "train.py"], "torchrun"),
    (["torchrun", "--nnodes", "1:1", "train.py"], "torchrun"),
    (["python", "-u", "-m", "torch.distributed.run", "train.py"], "torchrun"),
    (["bash", "-lc", "exec torchrun train.py --lr $LR"], "torchrun"),
    (["sh", "-c", "pip install -q wandb && OMP_NUM_THREADS=1 torchrun train.py"], "torchrun"),
    (["bash", "-c", "set -ex\ncd /src; torchrun \\\n  --standalone train.py"], "torchrun"),
    (["accelerate", "launch", "train.py"], "accelerate launch"),
    (["accelerate", "launch", "--num_machines", "1", "train.py"], "accelerate launch"),
    (["deepspeed", "train.py"], "deepspeed"),
    (["python3", "-m", "deepspeed.launcher.runner", "train.py"], "deepspeed"),
    (["/usr/bin/mpirun", "-np", "2", "python", "train.py"], "mpirun"),
    (["env", "A=b", "mpirun", "-np", "2", "python", "train.py"], "mpirun"),
    (["horovodrun", "-np", "2", "python", "train.py"], "horovodrun"),
    (["sh", "-c", 'export A="$RANK"; exec "$@"', "sh", "deepspeed", "train.py"], "deepspeed"),
]
OTHERS = [
    ["python", "train.py", "torchrun"],
    ["python", "-m", "train", "-m", "torch.distributed.run"],
    ["python", "train.py", "-m", "torch.distributed.run"],
    ["torchrun", "--nnodes=2", "--rdzv-endpoint=a:1", "train.py"],
    ["torchrun", "--nnodes", "$NODES", "train.py"],
    ["accelerate", "launch", "--num_machines=4", "train.py"],
    ["sh", "-c", 'export PET_NNODES="$WORLD_SIZE"; exec "$@"', "sh", "bash", "-c", "cd /src; torchrun train.py"],
    ["deepspeed", "--no_ssh", "--num_nodes=2", "--node_rank=1", "--master_addr=a", "train.py"],
    ["accelerate", "env"],
    ["bash", "-c", "echo 'torchrun"],
    ["bash", "-c", "echo torchrun train.py; python train.py"],
    ["bash", "train.sh"],
]
