"""The command `ringtrain-operator`, which runs the operator until it receives SIGTERM."""

from __future__ import annotations

import json
import logging
import os
import signal
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
    """Type of a command-line option whose value is a JSON object or list."""

    name = "json"

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the option's value as JSON. A value of another type is a usage error that names the option."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} is not valid JSON", param, ctx)
        if not isinstance(found, self._kind):
            self.fail(f"{value!r} is not a JSON {'object' if self._kind is dict else 'list'}", param, ctx)
        return found


class GangOption(click.ParamType[Any]):
    """Type of the option NAME or NAME=SCHEDULER: a gang scheduler, and the schedulerName of its pods."""

    name = "gang scheduler"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the gang scheduler's name and its schedulerName (by default its usual one). Other names are errors."""
        from .placement.gangs import SCHEDULERS

        if isinstance(value, tuple):
            return value
        gang, _, scheduler = str(value).partition("=")
        if gang not in SCHEDULERS:
            self.fail(f"{gang!r} is not a gang scheduler; expected one of {', '.join(SCHEDULERS)}", param, ctx)
        return gang, scheduler or SCHEDULERS[gang].scheduler_name


def _resource_option(given: dict[str, Any] | None, option: str, default: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container's resources from an option, or `default`. A wrong field is a usage error."""
    from .spec.pod_schema import packaged_pod_spec_schema

    if given is None:
        return default
    schema = replace(packaged_pod_spec_schema(), root="ResourceRequirements")
    problems = schema.problems(given, option)
    if problems:
        raise click.BadParameter("; ".join(map(str, problems)))
    return given


def _pod_group_option(value: str) -> int | None:
    """Return the group number of --fs-group; None if it is empty."""
    if not value:
        return None
    if not value.isdigit() or not 0 < int(value) < 2**31:
        raise click.BadParameter(f"--fs-group is {value!r}; expected a number from 1 to {2**31 - 1}, or an empty value")
    return int(value)


@click.command(hidden=True, context_settings={"auto_envvar_prefix": ENV_PREFIX, "help_option_names": ["-h", "--help"]})
@click.option("--namespace", "namespaces", multiple=True, help="Serve this namespace (repeatable). Default: all.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Number of jobs that are reconciled in parallel.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Maximum number of parallel requests to the API server.",
)
@click.option(
    "--resync",
    "resync_s",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    help="Seconds between reconciles of every job.",
)
@click.option(
    "--listen", default=":8080", show_default=True, help="Address of /healthz, /readyz and /metrics: host:port."
)
@click.option(
    "--leader-election/--no-leader-election",
    default=True,
    show_default=True,
    help="Elect one replica as leader; only the leader writes.",
)
@click.option("--lease-namespace", default="", help="Namespace of the leader's Lease. Default: the pod's namespace.")
@click.option("--lease-name", default="ringtrain-operator", show_default=True, help="Name of the leader's Lease.")
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.option(
    "--launcher-resources", type=JsonValue(dict), default=None, help="Resources of launchers' containers, as JSON."
)
@click.option(
    "--agent-resources",
    type=JsonValue(dict),
    default=None,
    help="Resources of the init containers that copy the agent, as JSON.",
)
@click.option(
    "--fs-group",
    default="65532",
    show_default=True,
    help="fsGroup of pods in which the operator mounts a claim. Empty: the cluster assigns "
    "the fsGroup, as in OpenShift.",
)
@click.option(
    "--metrics-from",
    type=JsonValue(list),
    default="[]",
    help="NetworkPolicyPeers that may read launchers' metrics, as a JSON list.",
)
@click.option(
    "--template-ports-from",
    type=JsonValue(list),
    default="[]",
    help="NetworkPolicyPeers that may connect to ports declared in jobs' pod templates, as a JSON list.",
)
@click.option(
    "--kueue/--no-kueue",
    default=False,
    show_default=True,
    help="For jobs with a queue, create Kueue Workloads, which request quota. Maturity: Beta.",
)
@click.option(
    "--gang",
    "gangs",
    type=GangOption(),
    multiple=True,
    help="Gang scheduler that jobs may use: Kubernetes, Coscheduling or Volcano; NAME=SCHEDULER also sets the pods' "
    "schedulerName. Repeatable. Maturity: Kubernetes Beta, Coscheduling Experimental, Volcano Experimental.",
)
@click.option(
    "--agent-image",
    default=DEFAULT_AGENT_IMAGE,
    show_default=True,
    help="Image from which the agent is copied into pods whose own image lacks the agent.",
)
@click.option(
    "--agent-pull-secret",
    "agent_pull_secrets",
    multiple=True,
    help="Secret in the jobs' namespaces with which the agent's image is pulled (repeatable).",
)
@click.option(
    "--agent-volume",
    type=click.Choice(["ImageVolume", "InitContainer"]),
    default="InitContainer",
    show_default=True,
    help="How the agent gets into pods: the kubelet mounts the agent's image, or an init container copies the agent. "
    "Maturity: ImageVolume Beta.",
)
@click.option(
    "--agent",
    "agent_default",
    type=click.Choice(["Inject", "Image"]),
    default="Inject",
    show_default=True,
    help="Default of spec.agent: the operator adds the agent to pods, or their image contains it.",
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

    Exit codes: 0 after SIGTERM or SIGINT, 1 after a failure or if the lease was lost.
    """
    if os.getpid() == 1:  # the kernel ignores SIGTERM to a container's first process until that has a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from .cluster.api.connection import ApiConnection
    from .cluster.config import OperatorConfig, configure_logging, default_identity
    from .cluster.operator import run_operator_until_signalled

    objects = _pop_settings(options)
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
        logging.getLogger("ringtrain_operator").error("the operator stops: %s", failure)
        sys.exit(1)


def operator_settings_of(arguments: Sequence[str]) -> BuildSettings:
    """Return the object settings of an operator with these arguments. Raises UsageError for an invalid one."""
    with operator.make_context("ringtrain-operator", list(arguments)) as context:
        return _pop_settings(dict(context.params))


def _pop_settings(options: dict[str, Any]) -> BuildSettings:
    """Remove the options that change a job's objects from `options`, and return them as settings."""
    from .build import AGENT_RESOURCES, LAUNCHER_RESOURCES, AgentSource, BuildSettings

    pop = options.pop
    return BuildSettings(
        launcher_resources=_resource_option(pop("launcher_resources"), "--launcher-resources", LAUNCHER_RESOURCES),
        metrics_from=pop("metrics_from"),
        template_ports_from=pop("template_ports_from"),
        agent=AgentSource(
            image=pop("agent_image"),
            volume=pop("agent_volume"),
            default=pop("agent_default"),
            resources=_resource_option(pop("agent_resources"), "--agent-resources", AGENT_RESOURCES),
            pull_secrets=pop("agent_pull_secrets"),
        ),
        fs_group=_pod_group_option(pop("fs_group")),
    )
