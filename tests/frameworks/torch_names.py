"""Checks that a script written for horovod.torch finds its names, arguments and defaults, run on every rank."""

from frameworks.horovod_names import differences

import ringtrain.torch as hvd


def check_names_arguments_and_defaults_are_those_of_horovod():
    assert differences("torch", hvd) == []
