"""Kubeflow's TrainerClient, by the plugin ringtrain-convert: `pip install ringtrain-convert`."""

from ringtrain_convert.kubeflow import *  # noqa: F403
