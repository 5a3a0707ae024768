"""Train with PyTorch Lightning on the ranks of a job: `Trainer(strategy=RingtrainStrategy())`.

Maturity: Beta.
"""

from importlib.util import find_spec

if find_spec("lightning") is None and find_spec("pytorch_lightning") is None:
    raise ModuleNotFoundError(
        "ringtrain.lightning needs Lightning, which is not installed: pip install lightning", name="lightning"
    )

from ringtrain_torch.lightning.strategy import RingtrainStrategy

__all__ = ["RingtrainStrategy"]


def __dir__() -> list[str]:
    return __all__
