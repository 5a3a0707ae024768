"""Kubeflow's TrainerClient for ringtrain's jobs. It needs the plugin: `pip install ringtrain-convert`."""

from ringtrain_convert.kubeflow import *  # noqa: F403
