"""`ringtrain-operator` run the operator until it receives SIGTERM."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from .reporting import errors_reported

if TYPE_CHECKING:
    from .build.settings import BuildSettings

ENV_PREFIX = "RINGTRAIN_OPERATOR"
DEFAULT_AGENT_IMAGE = f"ghcr.io/ringtrain/agent:{metadata.version('ringtrain-operator')}"


class JsonValue(click.ParamType[Any]):
    """An option that is JSON of one kind."""

    name = "json"

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a message that names the option for anything else."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError as exc:
            self.fail(f"{value!r} is not JSON: {exc}", param, ctx)
        if not isinstance(found, self._kind):
            self.fail(f"{value!r} is not a JSON {'object' if self._kind is dict else 'list'}", param, ctx)
        return found


class GangOption(click.ParamType[Any]):
    """A gang scheduler by its name in spec.scheduling.gang, and the schedulerName under which it runs."""

    name = "gang scheduler"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Both names, the second the usual one unless it is given; a message for an unknown gang scheduler."""
        from .placement.gangs import SCHEDULERS

        if isinstance(value, tuple):
            return value
        gang, _, scheduler = str(value).partition("=")
        if gang not in SCHEDULERS:
            self.fail(f"{gang!r} is none of {', '.join(SCHEDULERS)}", param, ctx)
        return gang, scheduler or SCHEDULERS[gang].scheduler_name


def _resource_option(given: dict[str, Any] | None, option: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resources of a container; an error that names the field that is wrong."""
    from .spec.pod_schema import packaged_pod_spec_schema

    if given is None:
        return default
    schema = replace(packaged_pod_spec_schema(), root="ResourceRequirements")
    problems = schema.problems(given, option)
    if problems:
        raise click.BadParameter("; ".join(map(str, problems)))
    return given


def _pod_group_option(value: str) -> int | None:
    """What --fs-group says."""
    if not value:
        return None
    if not value.isdigit() or not 0 < int(value) < 2**31:
        raise click.BadParameter(f"--fs-group is {value!r}; expected a number from 1 to {2**31 - 1}, or nothing")
    return int(value)


@click.command(hidden=True, context_settings={"auto_envvar_prefix": ENV_PREFIX, "help_option_names": ["-h", "--help"]})
@click.option("--namespace", "namespaces", multiple=True, help="Serve this namespace; again for more. None: all.")
@click.option("--workers", type=click.IntRange(1), default=16, show_default=True, help="Jobs looked at in parallel.")
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Requests to the API server in parallel.",
)
@click.option(
    "--resync",
    "resync_s",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    help="Seconds between looks at every job.",
)
@click.option("--listen", default=":8080", show_default=True, help="host:port of /healthz, /readyz, /metrics.")
@click.option("--leader-election/--no-leader-election", default=True, show_default=True, help="One of many writes.")
@click.option("--lease-namespace", default="", help="Where the Lease lies; default: the pod's own namespace.")
@click.option("--lease-name", default="ringtrain-operator", show_default=True, help="Name of the Lease.")
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option("--launcher-resources", type=JsonValue(dict), default=None, help="Of launchers, as JSON.")
@click.option(
    "--agent-resources", type=JsonValue(dict), default=None, help="Of containers that copy the agent, as JSON."
)
@click.option(
    "--fs-group",
    default="65532",
    show_default=True,
    help="Group of claims that the operator mounts; empty: the cluster gives one, as OpenShift does.",
)
@click.option(
    "--metrics-from",
    type=JsonValue(list),
    default="[]",
    help="NetworkPolicyPeers that may scrape launchers: JSON.",
)
@click.option(
    "--template-ports-from",
    type=JsonValue(list),
    default="[]",
    help="NetworkPolicyPeers that may reach the ports which jobs' templates declare: JSON.",
)
@click.option(
    "--kueue/--no-kueue",
    default=False,
    show_default=True,
    help="Write Kueue's Workloads for jobs with a queue. Maturity: Beta.",
)
@click.option(
    "--gang",
    "gangs",
    type=GangOption(),
    multiple=True,
    help="Gang scheduler whose PodGroups may be written: Kubernetes, Coscheduling or Volcano; NAME=SCHEDULER "
    "also names the scheduler that places the pods. Again for more. Maturity: Kubernetes Beta, Coscheduling "
    "Experimental, Volcano Experimental.",
)
@click.option(
    "--agent-image", default=DEFAULT_AGENT_IMAGE, show_default=True, help="Image that has the agent for any image."
)
@click.option(
    "--agent-pull-secret",
    "agent_pull_secrets",
    multiple=True,
    help="Secret in the jobs' namespaces that may pull the agent's image. Again for more.",
)
@click.option(
    "--agent-volume",
    type=click.Choice(["ImageVolume", "InitContainer"]),
    default="InitContainer",
    show_default=True,
    help="How the agent comes into pods: the kubelet mounts its image, or a first container copies it. "
    "Maturity: ImageVolume Experimental.",
)
@click.option(
    "--agent",
    "agent_default",
    type=click.Choice(["Inject", "Image"]),
    default="Inject",
    show_default=True,
    help="spec.agent of jobs that do not have it.",
)
@click.option(
    "--provisioning/--no-provisioning",
    default=False,
    show_default=True,
    help="Write ProvisioningRequests for jobs with scheduling.provisioning. Maturity: Experimental.",
)
@click.option("--kubeconfig", default=None, help="Kubeconfig to use instead of the pod's ServiceAccount.")
@click.version_option(package_name="ringtrain-operator", prog_name="ringtrain-operator")
def operator(kubeconfig: str | None, gangs: tuple[tuple[str, str], ...], **options: Any) -> None:
    """Run the operator. Every option can be given as RINGTRAIN_OPERATOR_<OPTION>.

    Exit codes: 0 after SIGTERM or SIGINT, 1 when something broke or the lease was lost.
    """
    from .cluster.api.connection import ApiConnection
    from .cluster.config import OperatorConfig, configure_logging, default_identity
    from .cluster.operator import run_operator_until_signalled

    objects = _take_settings(options)
    config = OperatorConfig(identity=default_identity(os.environ), objects=objects, gangs=dict(gangs), **options)
    try:
        config.address()
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    configure_logging(config.log_format, config.log_level)
    with errors_reported():
        connection = ApiConnection.from_env(os.environ, kubeconfig or "")
        failure = run_operator_until_signalled(config, connection)
    if failure is not None:
        logging.getLogger("ringtrain_operator").error("the operator ends: %s", failure)
        sys.exit(1)


def operator_settings_of(arguments: Sequence[str]) -> BuildSettings:
    """What an operator with these arguments does to jobs' objects. Raises click.UsageError for wrong ones."""
    with operator.make_context("ringtrain-operator", list(arguments)) as context:
        return _take_settings(dict(context.params))


def _take_settings(options: dict[str, Any]) -> BuildSettings:
    """The options about objects, which are taken out of `options`."""
    from .build import AGENT_RESOURCES, LAUNCHER_RESOURCES, AgentSource, BuildSettings

    take = options.pop
    return BuildSettings(
        launcher_resources=_resource_option(take("launcher_resources"), "--launcher-resources", LAUNCHER_RESOURCES),
        metrics_from=take("metrics_from"),
        template_ports_from=take("template_ports_from"),
        agent=AgentSource(
            image=take("agent_image"),
            volume=take("agent_volume"),
            default=take("agent_default"),
            resources=_resource_option(take("agent_resources"), "--agent-resources", AGENT_RESOURCES),
            pull_secrets=take("agent_pull_secrets"),
        ),
        fs_group=_pod_group_option(take("fs_group")),
    )
