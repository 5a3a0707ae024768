"""What other operators start and set for their jobs: the tables that converted jobs are held against.

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
