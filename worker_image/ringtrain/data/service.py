"""Re-export of the data service client from the plugin ringtrain-data-service."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_data_service")

from ringtrain_data_service import *  # noqa: E402, F403 (for type checkers)
