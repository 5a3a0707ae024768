"""Kubeflow's TrainerClient for ringtrain's jobs. It needs the plugin: `pip install ringtrain-convert`."""

from ringtrain_client.jobs.plugins import require_plugin

require_plugin(__name__, "ringtrain_convert")

from ringtrain_convert.kubeflow import *  # noqa: E402, F403
