"""Re-export of the Lightning strategy of the plugin ringtrain-torch: `Trainer(strategy=RingtrainStrategy())`."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_torch.lightning")

from ringtrain_torch.lightning import *  # noqa: E402, F403 (for type checkers)
