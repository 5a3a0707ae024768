"""Manifests that the chart renders, by value; the files in `manifests` equal them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import module_at
from support.documents import documents
from support.jobs import job
from support.rendering import CHART, HELM, HelmFailed, render

from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.training_template import read_template, resolved_job_spec

ROOT = CHART.parents[1]
Json = dict[str, Any]


def of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [o for o in objects if o["kind"] == kind]


def container(objects: list[Json]) -> Json:
    (deployment,) = of_kind(objects, "Deployment")
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_helm_finds_nothing_to_object_to() -> None:
    """`helm lint --strict` passes."""
    subprocess.run([str(HELM), "lint", "--strict", str(CHART)], check=True, capture_output=True)


def test_the_default_serves_the_cluster() -> None:
    """One ClusterRole, no Role but the lease's, no PodDisruptionBudget for a single replica."""
    objects = render()
    names = {o["metadata"]["name"] for o in of_kind(objects, "ClusterRole")}
    assert names == {"ringtrain-operator", "ringtrain-operator-edit", "ringtrain-operator-view"}
    assert [o["metadata"]["name"] for o in of_kind(objects, "Role")] == ["ringtrain-operator-lease"]
    assert not of_kind(objects, "PodDisruptionBudget")
    assert not of_kind(objects, "ServiceMonitor")
    assert not [a for a in container(objects)["args"] if a.startswith("--namespace")]


def test_a_list_of_namespaces_is_roles_there() -> None:
    """No ClusterRole with a rule of its own, a Role and a RoleBinding in each, and the operator told of them."""
    objects = render("namespaces={team-a,team-b}", "aggregateRoles=false")
    assert not of_kind(objects, "ClusterRole")
    assert not of_kind(objects, "ClusterRoleBinding")
    places = {o["metadata"]["namespace"] for o in of_kind(objects, "Role")}
    assert places == {"team-a", "team-b", "ringtrain-system"}
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container(objects)["args"])


@pytest.mark.parametrize("scope", [[], ["namespaces={team-a}"]], ids=["cluster", "namespaces"])
def test_no_role_reads_secrets(scope: list[str]) -> None:
    """Secrets are created and nothing else, and no rule has a wildcard."""
    for role in (o for o in render(*scope) if o["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"]


def test_the_pod_is_restricted() -> None:
    """It would be admitted where Pod Security is `restricted`, with a read-only root."""
    (deployment,) = of_kind(render(), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    main = pod["containers"][0]["securityContext"]
    assert main == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_jobs_network_policies_admit_the_operators_pods() -> None:
    """The label that a job's NetworkPolicy lets in is on the operator's pods, whatever the release is called."""
    from ringtrain_operator.build.network import OPERATOR_LABELS

    (deployment,) = of_kind(render(release="something-else"), "Deployment")
    assert OPERATOR_LABELS.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_what_is_said_about_jobs_reaches_the_operator() -> None:
    """Resources and peers are values; the command takes them as the chart passes them."""
    from ringtrain_operator.command import operator

    peer = "jobs.networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team"
    arguments = container(render("jobs.launcher.resources.limits.memory=2Gi", f"{peer}=sre"))["args"]
    parameters = operator.make_context("ringtrain-operator", list(arguments)).params
    assert parameters["launcher_resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    assert parameters["metrics_from"] == [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]
    assert parameters["template_ports_from"] == []


def test_the_charts_launcher_is_the_operators() -> None:
    """The values' default is what an operator without that option gives launchers."""
    from ringtrain_operator.build import LAUNCHER_RESOURCES

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["jobs"]["launcher"]["resources"] == LAUNCHER_RESOURCES


def test_two_replicas_have_a_budget_and_a_lease() -> None:
    """More than one replica: a PodDisruptionBudget, and the lease's name told and granted alike."""
    objects = render("replicas=2")
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    (role,) = of_kind(objects, "Role")
    (granted,) = [r["resourceNames"] for r in role["rules"] if "resourceNames" in r]
    assert f"--lease-name={granted[0]}" in container(objects)["args"]


def test_a_service_monitor_selects_the_metrics_service() -> None:
    """Its selector and port are the Service's."""
    objects = render("metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus")
    (monitor,), (service,) = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def name_of(obj: Json) -> str:
    """The object's name."""
    return str(obj["metadata"]["name"])


CRD_FILES = ("crd-templates.yaml", "crd.yaml")


def test_the_crds_are_upgraded_with_the_chart_and_outlive_it() -> None:
    """They are templates with Helm's keep policy, equal to those in manifests/; both are values."""
    crds = of_kind(render(), "CustomResourceDefinition")
    assert [crd["metadata"].pop("annotations") for crd in crds] == [{"helm.sh/resource-policy": "keep"}] * 3
    wanted = [crd for name in CRD_FILES for crd in documents(ROOT / "manifests" / name)]
    assert sorted(crds, key=name_of) == sorted(wanted, key=name_of)
    bare = of_kind(render("crds.keep=false"), "CustomResourceDefinition")
    assert [crd for crd in bare if "annotations" in crd["metadata"]] == []
    assert not of_kind(render("crds.install=false"), "CustomResourceDefinition")


def test_the_operator_understands_its_arguments() -> None:
    """The operator command parses the arguments that the Deployment passes."""
    from ringtrain_operator.command import operator

    arguments = container(render("namespaces={a,b}", "operator.leaderElection=false"))["args"]
    context = operator.make_context("ringtrain-operator", list(arguments))
    assert context.params["namespaces"] == ("a", "b")
    assert context.params["leader_election"] is False


def test_what_copying_the_agent_may_take_reaches_the_operator() -> None:
    """By default it is what the operator has by itself."""
    from ringtrain_operator.build.settings import AGENT_RESOURCES
    from ringtrain_operator.command import operator

    def given(*values: str) -> Any:
        arguments = list(container(render(*values))["args"])
        return operator.make_context("ringtrain-operator", arguments).params["agent_resources"]

    assert given() == AGENT_RESOURCES
    assert given("agent.resources.requests.cpu=200m")["requests"] == {"cpu": "200m", "memory": "32Mi"}


def test_null_takes_a_default_away() -> None:
    """As with any chart: launchers then have no resources but those of their template."""
    from ringtrain_operator.command import operator

    arguments = container(render("jobs.launcher.resources=null"))["args"]
    assert operator.make_context("ringtrain-operator", list(arguments)).params["launcher_resources"] == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("replicas=2,operator.leaderElection=false", "leaderElection: true", id="two-without-lease"),
        pytest.param("replicas=-1", "replicas", id="negative-replicas"),
        pytest.param("image.digest=latest", "digest", id="tag-as-digest"),
        pytest.param("operator.logLevel=loud", "logLevel", id="unknown-log-level"),
        pytest.param("namespaces={Team_A}", "namespaces", id="bad-namespace"),
        pytest.param("replica=2", "replica", id="misspelt-value"),
        pytest.param("metrics.service=false,metrics.serviceMonitor.enabled=true", "serviceMonitor", id="monitor-alone"),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, message: str) -> None:
    """The schema, or the chart, names the value."""
    with pytest.raises(HelmFailed) as refused:
        render(value)
    assert message in str(refused.value)


def strip_of_helm(obj: Json) -> None:
    """Take away what says that Helm manages the object, and the pods of a Deployment."""
    for meta in (obj["metadata"], obj.get("spec", {}).get("template", {}).get("metadata", {})):
        for field in ("labels", "annotations"):
            values = meta.get(field, {})
            for key in [k for k in values if k.startswith("helm.sh/") or values[k] == "Helm"]:
                del values[key]
            if field in meta and not values:
                del meta[field]


def test_users_rights_outlive_the_chart_with_the_jobs() -> None:
    """The roles that give rights on jobs are kept where the CRD is, and go where it goes."""
    kept = {"helm.sh/resource-policy": "keep"}
    users = [o for o in of_kind(render(), "ClusterRole") if o["metadata"]["name"].endswith(("-edit", "-view"))]
    assert [role["metadata"].get("annotations") for role in users] == [kept, kept]
    assert not [o for o in of_kind(render("crds.keep=false"), "ClusterRole") if "annotations" in o["metadata"]]


def test_the_manifests_are_the_charts() -> None:
    """manifests/operator.yaml is what the chart renders (`make generate` writes it)."""
    rendered = render("crds.install=false")
    committed = documents(ROOT / "manifests" / "operator.yaml")
    assert committed[0]["kind"] == "Namespace"
    for obj in rendered:
        strip_of_helm(obj)
    assert committed[1:] == rendered
    assert "helm" not in yaml.safe_dump_all(committed).lower()


def test_the_charts_crds_are_in_step(tmp_path: Path) -> None:
    """The templates of the CRDs are what charts/generate.py makes of those in manifests/."""
    module = module_at(ROOT / "charts" / "generate.py")
    for name in CRD_FILES:
        wanted = module.chart_crd((ROOT / "manifests" / name).read_text())
        assert (CHART / "templates" / name).read_text() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("scope", [[], ["namespaces={team-a}"]])
def test_rights_on_groups_come_with_each_gang_scheduler(scope: list[str]) -> None:
    """PodGroups of those that are turned on and of no other, nothing else of them; and the operator is told."""
    from ringtrain_operator.command import operator
    from ringtrain_operator.placement.gangs import SCHEDULERS

    def granted(*values: str) -> dict[str, Json]:
        rules = [rule for obj in render(*values, *scope) for rule in obj.get("rules") or ()]
        return {rule["apiGroups"][0]: rule for rule in rules if "podgroups" in rule["resources"]}

    assert granted() == {}
    for name, scheduler in SCHEDULERS.items():
        turned_on = f"gangs.{name.lower()}=true"
        rights = granted(turned_on)
        assert list(rights) == [scheduler.api_group]
        assert rights[scheduler.api_group]["resources"] == ["podgroups"]
        assert set(rights[scheduler.api_group]["verbs"]) == {"get", "list", "watch", "create", "delete"}
        arguments = container(render(turned_on, *scope))["args"]
        told = operator.make_context("ringtrain-operator", list(arguments)).params["gangs"]
        assert told == ((name, scheduler.scheduler_name),)
    renamed = ("gangs.volcano=true", "gangs.schedulerNames.volcano=batch")
    assert "--gang=Volcano=batch" in container(render(*renamed))["args"]


@pytest.mark.slow
@pytest.mark.parametrize("scope", [[], ["namespaces={team-a}"]])
def test_rights_to_ask_for_nodes_come_with_their_value(scope: list[str]) -> None:
    """Not one rule names requests or templates unless provisioning.enabled is set; the operator is told, too."""

    def granted(*values: str) -> set[str]:
        rules = [rule for obj in render(*values, *scope) for rule in obj.get("rules") or ()]
        return {name for rule in rules for name in rule["resources"]} & {"provisioningrequests", "podtemplates"}

    assert granted() == set()
    assert granted("provisioning.enabled=true") == {"provisioningrequests", "podtemplates"}
    assert "--provisioning" in container(render("provisioning.enabled=true", *scope))["args"]
    assert "--provisioning" not in container(render(*scope))["args"]


@pytest.mark.parametrize("scope", [[], ["namespaces={team-a}"]])
def test_rights_on_kueue_come_with_its_value(scope: list[str]) -> None:
    """Not one rule names Kueue unless kueue.enabled is set; then the operator is told, too."""

    def groups(*values: str) -> set[str]:
        rules = [rule for obj in render(*values, *scope) for rule in obj.get("rules") or ()]
        return {group for rule in rules for group in rule["apiGroups"]}

    assert "kueue.x-k8s.io" not in groups()
    assert {"kueue.x-k8s.io", "scheduling.k8s.io"} <= groups("kueue.enabled=true")
    assert "--kueue" in str(render("kueue.enabled=true", *scope))
    assert "--kueue" not in str(render(*scope))


def test_the_charts_templates_need_only_a_command() -> None:
    """Each has its sample, and makes a valid job of it. They come where their kind is served; a list of namespaces
    then gives the right to read such."""
    served = "ringtrain.dev/v1alpha1/ClusterTrainingTemplate"
    assert of_kind(render(serves=served), "ClusterTrainingTemplate") == []
    assert of_kind(render("templates.enabled=true"), "ClusterTrainingTemplate") == []
    chosen = ("templates.enabled=true", "image.registry=registry.test/", "namespaces={a}")
    objects = render(*chosen, "aggregateRoles=false", serves=served)
    made = of_kind(objects, "ClusterTrainingTemplate")
    assert {name_of(obj) for obj in made} == {"torch", "tensorflow", "jax", "mpi"}
    samples = documents(ROOT / "manifests/samples/templates/chart.yaml")
    by_template = {sample["spec"]["templateRef"]["name"]: sample for sample in samples}
    assert len(samples) == len(made)
    for obj in made:
        whole = parse_job(resolved_job_spec({**job(), "spec": by_template[name_of(obj)]["spec"]}, read_template(obj)))
        script = whole.spec.worker.template["spec"]["containers"][0]["command"][1]
        assert (ROOT / script).is_file()
        image = str(whole.spec.worker.template["spec"]["containers"][0]["image"])
        assert image.startswith("registry.test/ringtrain/worker")
        assert (whole.spec.backend == "mpi") is (name_of(obj) == "mpi")
    (role,) = of_kind(objects, "ClusterRole")
    assert role["rules"][0]["resources"] == ["clustertrainingtemplates"]
