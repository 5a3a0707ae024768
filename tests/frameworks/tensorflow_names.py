"""Checks that scripts for horovod.tensorflow and horovod.keras find their names, arguments and defaults."""

from frameworks.horovod_names import differences

import ringtrain.keras
import ringtrain.keras.callbacks
import ringtrain.tensorflow
import ringtrain.tensorflow.keras
import ringtrain.tensorflow.keras.callbacks


def check_names_arguments_and_defaults_are_those_of_horovod():
    assert differences("tensorflow", ringtrain.tensorflow) == []
    assert differences("keras", ringtrain.keras) == []
    assert differences("keras.callbacks", ringtrain.keras.callbacks) == []
    assert differences("tensorflow.keras", ringtrain.tensorflow.keras) == []
    assert differences("tensorflow.keras.callbacks", ringtrain.tensorflow.keras.callbacks) == []
