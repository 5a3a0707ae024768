"""Variables and ranks that other operators set for their jobs: the reference tables for converted jobs.

Values are formats: `rank` of a process, `local` on its node, `ranks` of all, `node` and `nodes` of the job,
`per_node` processes that a torchrun starts on each node, `slots` of a worker, `workers` that XGBoost counts (one
for each device). "head" and "29400" stand for address and port of the pod of rank 0, which has another name here.
"""

# kubeflow/trainer, below pkg/runtime/framework/plugins: torch/torch.go, jax/jax.go, xgboost/xgboost.go.
TRAINER: dict[str, dict[str, str]] = {
    "torch": {
        "PET_NNODES": "{nodes}",
        "PET_NPROC_PER_NODE": "{per_node}",
        "PET_NODE_RANK": "{rank}",
        "PET_MASTER_ADDR": "head",
        "PET_MASTER_PORT": "29400",
    },
    "jax": {
        "JAX_NUM_PROCESSES": "{nodes}",
        "JAX_PROCESS_ID": "{rank}",
        "JAX_COORDINATOR_ADDRESS": "head:29400",
        "JAX_COORDINATOR_PORT": "29400",
        "JAX_DISTRIBUTED_BACKEND": "gloo",
    },
    "xgboost": {
        "DMLC_TRACKER_URI": "head",
        "DMLC_TRACKER_PORT": "29400",
        "DMLC_TASK_ID": "{rank}",
        "DMLC_NUM_WORKER": "{workers}",
    },
}


def _per_node(**amounts: dict[str, object]) -> dict[str, object]:
    return {"resourcesPerNode": amounts}


# kubeflow/trainer 2.1 to 2.3: what a TrainJob says of a node, what its runtime says (resources), and how many ranks a
# node has. Those with "auto" in front are cases of torch_test.go (TestTorch, EnforceMLPolicy), with as many ranks as
# torchrun starts for "auto" on a node with GPUs; the others are after torch.go and GetNumGPUPerNode in runtime.go.
TRAINER_RANKS: dict[str, tuple[dict[str, object], dict[str, object], int]] = {
    "auto with CPU limit": (_per_node(requests={"cpu": "4"}), {}, 4),
    "auto with no CPU resources": ({}, {}, 1),
    "auto with low CPU limit": (_per_node(requests={"cpu": "2"}), {}, 2),
    "auto with CPU request but no limit": (_per_node(requests={"cpu": "3"}), {}, 3),
    "auto with millicore CPU limit": (_per_node(requests={"cpu": "2.5"}), {}, 3),
    "auto with fractional CPU limit": (_per_node(requests={"cpu": "0.7"}), {}, 1),
    "auto with GPU request should remain auto": (_per_node(requests={"example.com/gpu": "2"}), {}, 2),
    "auto with millicore CPU limit in m format": (_per_node(requests={"cpu": "2500m"}), {}, 3),
    "auto resolves to GPU count": (_per_node(requests={"cpu": "6", "example.com/gpu": "2"}), {}, 2),
    "explicitly set nproc_per_node": ({"numProcPerNode": 3, **_per_node(requests={"cpu": "8"})}, {}, 3),
    "requests before limits": (_per_node(requests={"cpu": "2"}, limits={"cpu": "8"}), {}, 2),
    "limits without requests": (_per_node(limits={"cpu": "8"}), {}, 8),
    "requests of zero": (_per_node(requests={"cpu": "0"}, limits={"cpu": "8"}), {}, 8),
    "resources of the runtime": ({}, {"requests": {"cpu": "3"}}, 3),
    "the job's before the runtime's": (_per_node(limits={"memory": "1Gi"}), {"requests": {"cpu": "3"}}, 1),
    "GPUs of the runtime": ({}, {"limits": {"nvidia.com/gpu": 8, "cpu": 96}}, 8),
    "GPUs beside more network adapters": (
        _per_node(limits={"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32, "cpu": 96}),
        {},
        8,
    ),
    "devices that are no GPUs": (_per_node(limits={"habana.ai/gaudi": 8, "cpu": 4}), {}, 4),
}
# kubeflow/trainer 2.3, manifests/base/runtimes with the tags of manifests/overlays/runtimes: name of a runtime, source
# of its mlPolicy, image, user.
_IMAGES = "ghcr.io/kubeflow/trainer"
TRAINER_RUNTIMES: list[tuple[str, str, str, int | None]] = [
    ("torch-distributed", "torch", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", None),
    ("jax-distributed", "jax", "nvcr.io/nvidia/jax:25.10-py3", None),
    ("xgboost-distributed", "xgboost", f"{_IMAGES}/xgboost-runtime:v2.3.0", None),
    ("deepspeed-distributed", "mpi", f"{_IMAGES}/deepspeed-runtime:v2.3.0", 1000),
    ("mlx-distributed", "mpi", f"{_IMAGES}/mlx-runtime:v2.3.0", 1000),
]
# Of manifests/base/runtimes/torchtune: name of a runtime, model in Hugging Face's hub, end of the node's command.
_TOKENIZER = ["tokenizer.path=/workspace/model/original/tokenizer.model"]
TUNE_RUNTIMES: dict[str, tuple[str, list[str]]] = {
    "torchtune-llama3.2-1b": ("meta-llama/Llama-3.2-1B-Instruct", _TOKENIZER),
    "torchtune-llama3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", _TOKENIZER),
    "torchtune-qwen2.5-1.5b": (
        "Qwen/Qwen2.5-1.5B-Instruct",
        ["tokenizer.path=/workspace/model/vocab.json", "tokenizer.merges_file=/workspace/model/merges.txt"],
    ),
}
# kubeflow/trainer 2.3: what torch.go and torchtune.go make of the command `tune run`. Of a job: its runtime's name,
# numNodes, numProcPerNode, GPUs of a node, args. Result: whether torchrun's rendezvous is set, recipe, configuration.
# Cases of TestGetRecipeAndConfig and TestIsUseQLoraFinetune (torchtune_test.go); those with "TorchTune values" of
# core/trainingruntime_test.go, "succeeded to build JobSet with TorchTune values". QLoRA on four GPUs is valid for 70B.
_1B, _70B, _LORA = "torchtune-llama3.2-1b", "torchtune-llama3.3-70b", "model.lora_attn_modules=['q_proj']"
_QLORA, _DORA = "model.quantize_base=True", "model.use_dora=True"
_TuneCase = tuple[str, int, int | None, int, list[str]]
TUNE: dict[str, tuple[_TuneCase, tuple[bool, str, str]]] = {
    "single device full": (
        (_1B, 1, None, 1, []),
        (False, "full_finetune_single_device", "llama3_2/1B_full_single_device"),
    ),
    "single device lora": (
        (_1B, 1, None, 1, [_LORA]),
        (False, "lora_finetune_single_device", "llama3_2/1B_lora_single_device"),
    ),
    "single device qlora": (
        (_1B, 1, None, 1, [_QLORA]),
        (False, "lora_finetune_single_device", "llama3_2/1B_qlora_single_device"),
    ),
    "single node multi-gpu full": ((_1B, 1, None, 4, []), (True, "full_finetune_distributed", "llama3_2/1B_full")),
    "single node multi-gpu lora": ((_1B, 1, None, 4, [_LORA]), (True, "lora_finetune_distributed", "llama3_2/1B_lora")),
    "single node multi-gpu qlora": (
        (_70B, 1, None, 4, [_QLORA]),
        (True, "lora_finetune_distributed", "llama3_3/70B_qlora"),
    ),
    "multi-node full": ((_70B, 2, None, 8, []), (True, "full_finetune_distributed", "llama3_3/70B_full_multinode")),
    "numProcPerNode=1 with multiple gpus": (
        (_1B, 1, 1, 4, []),
        (False, "full_finetune_single_device", "llama3_2/1B_full_single_device"),
    ),
    "numProcPerNode>1": ((_1B, 1, 4, 4, []), (True, "full_finetune_distributed", "llama3_2/1B_full")),
    "TorchTune values": (
        (_70B, 30, 3, 0, ["dtype=fp16", "loss=torchtune.modules.loss.CEWithChunkedOutputLoss"]),
        (True, "full_finetune_distributed", "llama3_3/70B_full_multinode"),
    ),
    "TorchTune values (LoRA)": (
        (_1B, 1, None, 2, ["model.apply_lora_to_mlp=True", "model.lora_attn_modules=[q_proj,k_proj]"]),
        (True, "lora_finetune_distributed", "llama3_2/1B_lora"),
    ),
    "TorchTune values (QLoRA)": (
        (_1B, 1, None, 1, [_LORA, _QLORA, "dataset.source=parquet"]),
        (False, "lora_finetune_single_device", "llama3_2/1B_qlora_single_device"),
    ),
    "TorchTune values (DoRA)": (
        (_1B, 1, None, 2, [_LORA, _QLORA, _DORA]),
        (True, "lora_finetune_distributed", "llama3_2/1B_lora"),
    ),
    "quantize base explicitly disabled": (
        (_1B, 1, None, 1, [_LORA, "model.quantize_base=False"]),
        (False, "lora_finetune_single_device", "llama3_2/1B_lora_single_device"),
    ),
    "qwen2.5": (
        ("torchtune-qwen2.5-1.5b", 1, None, 2, []),
        (True, "full_finetune_distributed", "qwen2_5/1.5B_full"),
    ),
}
# Jobs that validateTorchTune in torchtune.go refuses, and the field that it names.
TUNE_REFUSED: dict[str, tuple[_TuneCase, str]] = {
    "unsupported pretrained model": (("torchtune-llama3.1-70b", 1, None, 1, []), "spec.runtimeRef.name"),
    "fewer than three parts": (("torchtune-llama3.2", 1, None, 1, []), "spec.runtimeRef.name"),
    "multi-node mode is only for Llama-3.3-70b": (("torchtune-llama3.2-3b", 2, None, 0, []), "spec.trainer.numNodes"),
    "qlora for qwen": (("torchtune-qwen2.5-1.5b", 1, None, 1, [_LORA, _QLORA]), "spec.trainer.args"),
    "multi-devices qlora for llama3.2-1b": ((_1B, 1, None, 2, [_LORA, _QLORA]), "spec.trainer.args"),
    "lora for multi-node": ((_70B, 2, None, 8, [_LORA]), "spec.trainer.numNodes"),
    "immutable config": ((_1B, 1, None, 1, ["a=1", "output_dir=/x"]), "spec.trainer.args[1]"),
}
# kubeflow/training-operator v1, pkg/controller.v1: pytorch/envvar.go, pytorch/elastic.go, jax/envvar.go,
# xgboost/xgboost.go.
_TORCH = {"RANK": "{rank}", "WORLD_SIZE": "{nodes}", "MASTER_ADDR": "head", "MASTER_PORT": "29400"}
TRAINING_OPERATOR: dict[str, dict[str, str]] = {
    "PyTorchJob": {**_TORCH, "PET_NNODES": "{nodes}", "PET_NODE_RANK": "{rank}", "PET_NPROC_PER_NODE": "auto"},
    "JAXJob": {
        "NUM_PROCESSES": "{nodes}",
        "PROCESS_ID": "{rank}",
        "COORDINATOR_ADDRESS": "head",
        "COORDINATOR_PORT": "29400",
    },
    "XGBoostJob": _TORCH,
}
# A process that torchrun starts: pytorch's torch/distributed/run.py, "Environment Variables".
TORCHRUN = {
    "RANK": "{rank}",
    "WORLD_SIZE": "{ranks}",
    "LOCAL_RANK": "{local}",
    "LOCAL_WORLD_SIZE": "{per_node}",
    "GROUP_RANK": "{node}",
    "MASTER_ADDR": "head",
}
# Lines of /etc/mpi/hostfile: newConfigMap in mpi-operator's pkg/controller/mpi_job_controller.go.
HOSTFILE = {"OpenMPI": r"(\S+) slots={slots}", "MPICH": r"([^\s:]+):{slots}", "Intel": r"([^\s:]+):{slots}"}
