"""Functions and classes of TensorFlow's data service, which the plugin ringtrain-data-service provides."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_data_service.tensorflow")
