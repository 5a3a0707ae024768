"""What `horovodrun --check-build` shows: frameworks that are installed, and ways to exchange tensors."""

from importlib.metadata import version
from importlib.util import find_spec


def check_build() -> str:
    """Horovod's three lists, with what is here."""
    lists = {
        "Frameworks": {name: _installed(module) for name, module in _FRAMEWORKS.items()},
        "Controllers": {"MPI": _installed("mpi4py"), "Gloo": False, "Ringtrain's launcher": True},
        "Tensor Operations": {
            **dict.fromkeys(("NCCL", "DDL", "CCL"), False),
            "MPI": _installed("mpi4py"),
            "Gloo": False,
            "gRPC": True,
            "shared memory": _installed("ringtrain.kernels._native"),
        },
    }
    lines = [f"Ringtrain v{version('ringtrain')}:"]
    for title, rows in lists.items():
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for name, there in rows.items()]
    return "\n".join(lines)


_FRAMEWORKS = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet", "Keras": "keras"}


def _installed(module: str) -> bool:
    return find_spec(module) is not None
