"""The launcher's settings, as its user knows them."""

from support.small_job import environment

from ringtrain.shared import contract
from ringtrain_job.launcher.config import LauncherConfig


def test_failures_name_the_setting_that_the_user_made() -> None:
    """An option of `ringtrain run`, which names no pod, or a field of a job, also of `dtj local`."""
    variables = {**environment(1), contract.ENV_PORTS_HELD: "1"}
    of_run = LauncherConfig.from_env(variables)
    of_pod = LauncherConfig.from_env({**variables, contract.ENV_POD_NAME: "digits-launcher"})
    assert (of_run.nan_setting, of_pod.nan_setting) == ("--fail-on-nan", "spec.runPolicy.failOnNaN")
