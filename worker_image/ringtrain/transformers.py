"""Re-export of Hugging Face's Trainer for Ringtrain from the plugin ringtrain-torch."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_torch.transformers")

from ringtrain_torch.transformers import *  # noqa: E402, F403 (for type checkers)
