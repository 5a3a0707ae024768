"""Train with PyTorch Lightning on the ranks of a job: `Trainer(strategy=RingtrainStrategy())`.

Maturity: Beta.
"""

from ringtrain._core.requirements import missing

if missing("lightning") and missing("pytorch_lightning"):
    raise ModuleNotFoundError(
        "ringtrain.lightning needs Lightning, which is not installed: pip install lightning", name="lightning"
    )

from ringtrain.lightning.strategy import RingtrainStrategy

__all__ = ["RingtrainStrategy"]


def __dir__() -> list[str]:
    return __all__
