"""Names of TensorFlow's data service on data workers, from the plugin ringtrain-data-service."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_data_service.tensorflow")
