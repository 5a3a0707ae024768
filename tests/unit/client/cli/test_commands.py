"""Commands of `dtj`: help, hints, validate and render."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from contract.object_cases import RIGHT as RIGHT_OBJECTS
from contract.object_cases import WRONG as OBJECTS
from support.jobs import job
from support.rendering import render

from ringtrain_client.cli.main import main
from ringtrain_operator.command import DEFAULT_AGENT_IMAGE, operator


def test_the_help_has_what_people_use() -> None:
    """`dtj -h` lists the commands for people and hides the others."""
    result = CliRunner().invoke(main, ["-h"])
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"why", "watch", "logs", "local"} <= set(listed)
    assert "describe" not in listed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--workers", "0"], "'--workers': 0", id="no-worker"),
        pytest.param(["--connections", "0"], "'--connections': 0", id="no-connection"),
        pytest.param(["--resync", "nan"], "'--resync': 'nan'", id="no-time"),
        pytest.param(["--log-level", "loud"], "'--log-level': 'loud'", id="no-level"),
        pytest.param(["--listen", "abc"], "listen is 'abc'; expected host:port", id="no-address"),
        pytest.param(["--listen", ":99999"], "listen is ':99999'; expected host:port", id="no-port"),
    ],
)
def test_the_operator_does_not_start_with_what_makes_no_sense(words: list[str], said: str) -> None:
    """An invalid value of an option ends the operator with an error."""
    result = CliRunner().invoke(operator, [*words, "--kubeconfig", "/nowhere"])
    assert result.exit_code == 2
    assert said in result.output


def test_a_mistyped_command_gets_a_hint() -> None:
    """A misspelled command gets a hint at a similar one."""
    result = CliRunner().invoke(main, ["lst"])
    assert result.exit_code == 2
    assert "No such command 'lst'. Did you mean 'list'?" in result.output
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output
    assert "Did you mean 'list'?" in CliRunner().invoke(main, ["ls"]).output


def test_describe_means_why() -> None:
    """A word of kubectl gets a hint at the equivalent command."""
    assert "Did you mean 'why'?" in CliRunner().invoke(main, ["describe"]).output


def test_every_pod_of_a_job_is_rendered(tmp_path: Path) -> None:
    """The output has pods of data workers and the evaluator."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job(dataWorkers={"replicas": 2}, evaluator={})))
    result = CliRunner().invoke(main, ["render", str(path)])
    assert result.exit_code == 0, result.output
    pods = [obj["metadata"]["name"] for obj in yaml.safe_load_all(result.stdout) if obj["kind"] == "Pod"]
    gang = ["digits-launcher", "digits-worker-0", "digits-worker-1"]
    assert pods == [*gang, "digits-data-0", "digits-data-1", "digits-evaluator"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "image", "group", "cpu"),
    [
        pytest.param(None, DEFAULT_AGENT_IMAGE, 65532, "100m", id="no-installation"),
        pytest.param((), DEFAULT_AGENT_IMAGE, 65532, "100m", id="defaults"),
        pytest.param(
            ("image.registry=own", "agent.image.tag=v7", "jobs.fsGroup=0", "agent.resources.requests.cpu=1500m"),
            "own/ringtrain/agent:v7", None, "1500m", id="own-values",
        ),
        pytest.param(("agent.default=Image",), None, 65532, None, id="no-agent"),
    ],
)  # fmt: skip
def test_an_installations_settings_are_rendered(
    values: tuple[str, ...] | None, image: str | None, group: int | None, cpu: str | None, tmp_path: Path
) -> None:
    """The output has the pods as the operator of this installation creates them, by the output of Helm."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job(logs={"persistentVolumeClaim": {"claimName": "logs"}})))
    command = ["render", str(tmp_path / "job.yaml")]
    if values is not None:
        (tmp_path / "operator.yaml").write_text(yaml.safe_dump_all(render(*values)))
        command.append(f"--installation={tmp_path / 'operator.yaml'}")
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    launcher = next(obj for obj in yaml.safe_load_all(result.stdout) if obj["metadata"]["name"] == "digits-launcher")
    first = (launcher["spec"].get("initContainers") or [{}])[0]
    assert first.get("image") == image
    assert (first.get("resources") or {"requests": {"cpu": None}})["requests"]["cpu"] == cpu
    assert launcher["spec"]["securityContext"].get("fsGroup") == group


@pytest.mark.parametrize(
    ("deployment", "said"),
    [
        (None, "has no Deployment of the operator"),
        ({"spec": "x"}, "Deployment: spec: is 'x'; expected a mapping"),
        ({"spec": {"template": {"spec": {"containers": "x"}}}}, "Deployment: spec.template.spec.containers: must be"),
        ({"spec": {"template": {"spec": {"containers": [{"args": [5]}]}}}}, "containers[0].args[0]: must be a string"),
    ],
    ids=["none", "spec", "containers", "args"],
)
def test_a_file_without_an_installation(deployment: dict[str, Any] | None, said: str, tmp_path: Path) -> None:
    """The error names the file and the expected content."""
    path = tmp_path / "job.yaml"
    more = [] if deployment is None else [{"apiVersion": "apps/v1", "kind": "Deployment", **deployment}]
    path.write_text(yaml.safe_dump_all([job(), *more]))
    result = CliRunner().invoke(main, ["render", str(path), f"--installation={path}"])
    assert result.exit_code == 1
    assert f"{path}: {said}" in result.output or said in result.output.split(f"{path}: ")[1]


TEMPLATE = {
    "apiVersion": "ringtrain.dev/v1alpha1",
    "kind": "ClusterTrainingTemplate",
    "metadata": {"name": "small"},
    "spec": {"description": "of tests", "job": {"worker": {"template": job()["spec"]["worker"]["template"]}}},
}
NAMING = {**job(), "spec": {"templateRef": {"name": "small"}, "worker": {"replicas": 3}}}


@pytest.mark.parametrize("beside", [True, False], ids=["beside-the-job", "in-a-file-of-its-own"])
@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_job_of_a_file_names_a_template(command: str, beside: bool, tmp_path: Path) -> None:
    """A template of the job's file or of another file is used. Otherwise the error lists the ways to find it."""
    path, other = tmp_path / "job.yaml", tmp_path / "templates.yaml"
    path.write_text(yaml.safe_dump_all([NAMING, TEMPLATE] if beside else [NAMING]))
    other.write_text(yaml.safe_dump(TEMPLATE))
    result = CliRunner().invoke(main, [command, str(path), *([] if beside else [f"--templates={other}"])])
    assert result.exit_code == 0, result.output
    assert ("digits-worker-2" if command == "render" else "3 workers") in result.output
    path.write_text(yaml.safe_dump(NAMING))
    result = CliRunner().invoke(main, [command, str(path)])
    assert result.exit_code == 1
    assert f"{path}: spec.templateRef.name: ClusterTrainingTemplate small is in none of the files" in result.output


@pytest.mark.parametrize(
    ("part", "said"),
    [
        pytest.param({"backend": "mpi"}, "", id="a-small-part"),
        pytest.param({"backnd": "mpi"}, "spec.job.backnd: is not a field here; did you mean backend?", id="misspelt"),
        pytest.param({"worker": {"replicas": 2}}, "spec.job.worker.replicas: can only be set by each job", id="own"),
        pytest.param({"slotsPerWorker": "2"}, "spec.job.slotsPerWorker: is '2'", id="of-a-wrong-type"),
        pytest.param(
            {"worker": {"template": {"spec": {"nodeSelecter": {}}}}}, "did you mean nodeSelector?", id="in-a-pod"
        ),
    ],
)
def test_a_template_alone_is_validated(part: dict[str, Any], said: str, tmp_path: Path) -> None:
    """A template is not a complete job; a field that no job could correct is named."""
    path = tmp_path / "template.yaml"
    path.write_text(yaml.safe_dump({**TEMPLATE, "spec": {"job": part}}))
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert result.exit_code == int(bool(said)), result.output
    assert (said or "ClusterTrainingTemplate small is a valid job template") in result.output


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_list_is_its_items(command: str, tmp_path: Path) -> None:
    """A List, as `kubectl get --output=yaml` prints several jobs, is read like its items."""
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [job(), job("faces")]}))
    result = CliRunner().invoke(main, [command, str(path)])
    assert result.exit_code == 0, result.output
    assert "digits" in result.stdout
    assert "faces" in result.stdout


@pytest.mark.parametrize("command", ["validate", "render"])
def test_a_job_that_the_cluster_names(command: str) -> None:
    """`generateName` works as in Kubernetes, `-` is standard input, and rendering is deterministic."""
    made = job()
    made["metadata"] = {"generateName": "digits-"}
    results = [CliRunner().invoke(main, [command, "-"], input=yaml.safe_dump(made)) for _ in range(2)]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    assert "digits-00000" in results[0].output
    assert results[0].output == results[1].output


def test_a_generated_name_has_room() -> None:
    """A name that leaves no room for the suffix of five characters is refused with the field that has it."""
    made = job()
    made["metadata"] = {"generateName": "d" * 47}
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made))
    assert result.exit_code == 1
    assert "metadata.generateName" in result.output
    assert "at most 51 characters with the 5 that the cluster adds" in result.output
    made["metadata"] = {"generateName": "Hello-"}
    assert (
        "generateName: is 'Hello-';" in CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made)).output
    )


def test_a_job_on_standard_input_is_not_run_here() -> None:
    """`dtj local` refuses standard input, because it reads the file again while the job runs."""
    result = CliRunner().invoke(main, ["local", "-"], input=yaml.safe_dump(job()))
    assert result.exit_code == 2
    assert "write the manifest into a file" in result.output


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        pytest.param({"name": "code"}, "", id="all-is-there"),
        pytest.param({"name": "other"}, "", id="in-the-cluster"),
        pytest.param(
            {"name": "code", "namespace": "lab"},
            "ConfigMap code of this file is in namespace lab, the job in default",
            id="another-namespace",
        ),
        pytest.param({"name": "coed"}, "ConfigMap code is not in this file; did you mean coed?", id="misspelt"),
        pytest.param({"name": "code", "key": "trian.py"}, "has no key train.py; it has trian.py", id="no-such-key"),
    ],
)
@pytest.mark.parametrize("way", ["volume", "variable"])
def test_objects_of_a_file_are_held_against_each_other(beside: dict[str, str], said: str, way: str) -> None:
    """References of a job are checked with the ConfigMaps of its file; other names may exist in the cluster."""
    metadata = {name: value for name, value in beside.items() if name != "key"}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {beside.get("key", "train.py"): "1"},
    }
    made = job()
    made["metadata"]["namespace"] = "default"
    pod = made["spec"]["worker"]["template"]["spec"]
    if way == "volume":
        pod["volumes"] = [{"name": "c", "configMap": {"name": "code", "items": [{"key": "train.py", "path": "t"}]}}]
    else:
        reference = {"configMapKeyRef": {"name": "code", "key": "train.py"}}
        pod["containers"][0]["env"] = [{"name": "A", "valueFrom": reference}]
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump_all([config, made]))
    certain = bool(said) and "did you mean" not in said
    assert (result.exit_code, said in result.output) == (int(certain), True), result.output


def test_a_faulty_object_is_still_an_object_of_the_file() -> None:
    """Nothing is said about its namespace; an object that is in another namespace is still named."""
    made = job()
    references = [{"configMapRef": {"name": name}} for name in ("settings", "far")]
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["envFrom"] = references
    maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"EPOCHS": 5}}
        for metadata in ({"name": "settings"}, {"name": "far", "namespace": "lab"})
    ]
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump_all([made, *maps]))
    said = "ConfigMap settings: data.EPOCHS: is 5; expected a string", "ConfigMap far of this file is in namespace lab"
    lines = result.stderr.splitlines()
    assert [line.startswith(f"-: {words}") for line, words in zip(lines, said, strict=True)] == [True, True], lines


@pytest.mark.parametrize(("beside", "said"), OBJECTS, ids=[said.partition(": ")[2][:40] for _, said in OBJECTS])
def test_objects_beside_a_job_that_kubernetes_refuses(beside: dict[str, Any], said: str) -> None:
    """Their version, fields, metadata and contents are checked, as a real API server checks them."""
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump_all([job(), beside]))
    assert (result.exit_code, said in result.stderr) == (1, True), result.output


@pytest.mark.parametrize("beside", RIGHT_OBJECTS)
def test_objects_beside_a_job_that_kubernetes_accepts(beside: dict[str, Any]) -> None:
    """Values at a limit, and null fields, are no problems."""
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump_all([job(), beside]))
    assert (result.exit_code, result.stderr) == (0, ""), result.output


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"apiVersion": "v1", "kind": "Configmap", "metadata": {"name": "c"}}, "did you mean ConfigMap?"),
        (job(), "digits: appears twice; give one of the two another name"),
        ({**job("other"), "sepc": {}}, "other: sepc: is not a field here; did you mean spec?"),
        (
            {**job("other"), "metadata": {"name": "other", "finalizers": ["x y"]}},
            "other: metadata.finalizers[0]: is 'x y'; expected a name of letters",
        ),
        (
            {**job("other"), "metadata": {"name": "other", "ownerReferences": [{"name": "x"}]}},
            "other: metadata.ownerReferences[0].uid: is missing",
        ),
        ({**job("other"), "metadata": "other"}, "job without a name: metadata: is 'other'; expected a mapping"),
        (
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": 3},
            "PersistentVolumeClaim: metadata: is 3; expected a mapping",
        ),
        (["x"], "document 2: is ['x']; expected an object with apiVersion, kind and metadata"),
    ],
    ids=["kind", "twice", "field", "finalizer", "owner", "metadata", "metadata of a claim", "list"],
)
def test_documents_beside_a_job(beside: Any, said: str) -> None:
    """Kinds, names and fields of all objects of a file are checked."""
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump_all([job(), beside]))
    assert (result.exit_code, said in result.stderr) == (1, True), result.output


@pytest.mark.parametrize("text", ["{}---\n", "---\n# made\n---\n{}", "{}---\n# end\n"])
def test_empty_documents_are_ignored(text: str) -> None:
    """As by kubectl."""
    result = CliRunner().invoke(main, ["validate", "-"], input=text.format(yaml.safe_dump(job())))
    assert (result.exit_code, result.stderr) == (0, "")


def test_all_problems_of_a_file_are_said_at_once() -> None:
    """Those of the job's fields, of its image and of a Secret beside it; and nothing is called valid."""
    made = job()
    made["spec"]["worker"]["template"]["spec"]["restartPolicy"] = "Always"
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["image"] = "a b"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "%%"}}
    text = yaml.safe_dump_all([made, secret])
    result = CliRunner().invoke(main, ["validate", "-"], input=text)
    assert result.exit_code == 1
    for said in ("Secret s: data.a", "restartPolicy: is 'Always'", "containers[0].image: is 'a b'"):
        assert said in result.stderr
    assert "is valid" not in result.output


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        pytest.param({**job("other"), "specs": {}}, "other: specs", id="job"),
        pytest.param(OBJECTS[0][0], "", id="object"),
        pytest.param(
            {**TEMPLATE, "spec": {"job": {"backnd": "mpi"}}}, "Template small: spec.job.backnd: is", id="template"
        ),
        pytest.param({**TEMPLATE, "kind": "Template"}, "Template small: kind: is 'Template'", id="kind"),
        pytest.param({**TEMPLATE, "apiVersion": "ringtrain.dev/v1"}, "apiVersion: is 'ringtrain.dev/v1'", id="version"),
    ],
)
def test_what_validate_refuses_beside_a_job_the_others_refuse_too(beside: Any, said: str, tmp_path: Path) -> None:
    """Not only in the job's spec, and whether or not the job names it."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([job(), beside]))
    for command in ("validate", "render", "local"):
        result = CliRunner().invoke(main, [command, str(file)])
        assert (result.exit_code, said in result.stderr) == (1, True), (command, result.output)


def test_render_and_validate_say_the_same_of_references_and_images(tmp_path: Path) -> None:
    """A missing key of a ConfigMap, and an image that comes from a template of the file."""
    needs = job("needs")
    reference = {"configMapKeyRef": {"name": "c", "key": "absent"}}
    needs["spec"]["worker"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": reference}]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"b": "1"}}
    containers = [{"name": "train", "image": "a b", "command": ["true"]}]
    template = {
        "apiVersion": "ringtrain.dev/v1alpha1",
        "kind": "ClusterTrainingTemplate",
        "metadata": {"name": "t"},
        "spec": {"job": {"worker": {"template": {"spec": {"containers": containers}}}}},
    }
    named = {**job("named"), "spec": {"templateRef": {"name": "t"}, "worker": {"replicas": 1}}}
    for objects, said in (([needs, config], "c of this file has no key absent"), ([template, named], "is 'a b'")):
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        for command in ("validate", "render"):
            result = CliRunner().invoke(main, [command, str(file)])
            assert (result.exit_code, said in result.stderr) == (1, True), (command, result.output)


def test_an_annotation_that_names_no_container() -> None:
    """The training container would be another one than the user meant."""
    made = job()
    annotations = {"kubectl.kubernetes.io/default-container": "trian"}
    made["spec"]["worker"]["template"]["metadata"] = {"annotations": annotations}
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made))
    assert (result.exit_code, "is 'trian'; expected one of train" in result.stderr) == (1, True), result.output


@pytest.mark.parametrize(
    ("image", "code"),
    [
        ("a b", 1),
        (" lab/Train", 1),
        ("lab/Train:1", 1),
        ("Train", 1),
        ("x.io:5000/lab/train:V1", 0),
        (f"train@sha256:{'ab' * 32}", 0),
    ],
)
def test_an_image_that_no_node_can_pull(image: str, code: int) -> None:
    """One line says what is expected."""
    made = job()
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["image"] = image
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made))
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, code)
    assert ("expected an image such as" in result.stderr) == bool(code)


def test_a_number_in_quotes() -> None:
    """The way out is to remove them."""
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(job(slotsPerWorker="2")))
    assert "spec.slotsPerWorker: is '2'; expected a whole number without quotes" in result.stderr


def test_a_list_in_a_command() -> None:
    """Quotes would make it another command."""
    made = job()
    made["spec"]["worker"]["template"]["spec"]["containers"][0]["command"] = [["python"], "train.py"]
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made))
    assert "containers[0].command[0]: expected a text, not a list" in result.stderr


def test_a_suspended_job_of_a_queue_is_said_to_wait_for_its_user() -> None:
    made = job(scheduling={"queue": "research"}, runPolicy={"suspend": True})
    said = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made)).output
    assert "runPolicy.suspend is true, so the job does not enter its queue research" in said


def test_a_field_in_the_wrong_place_is_shown_its_own() -> None:
    made = job(replicas=2, ttlSecondsAfterFinished=5, image="x", nodeSelector={})
    said = " ".join(CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made)).output.split())
    assert "spec.replicas: is not a field here; it is spec.worker.replicas" in said
    assert "it is spec.runPolicy.ttlSecondsAfterFinished" in said
    assert "it is spec.worker.template.spec.containers[0].image" in said
    assert "it is spec.worker.template.spec.nodeSelector" in said


def test_no_device_of_a_kind() -> None:
    """`nvidia.com/gpu: 0` in a template means no device, also in a launcher's."""
    made = job(launcher={"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 0}}}]}}})
    main_container = made["spec"]["worker"]["template"]["spec"]["containers"][0]
    main_container["resources"] = {"limits": {"nvidia.com/gpu": 0, "amd.com/gpu": "2"}}
    result = CliRunner().invoke(main, ["validate", "-"], input=yaml.safe_dump(made))
    assert "2 workers, 4 ranks" in result.output, result.output


@pytest.mark.parametrize("command", ["validate", "submit"])
def test_of_several_jobs_in_a_file_the_wrong_one_is_named(command: str, tmp_path: Path) -> None:
    """The field alone does not tell which of the jobs must be corrected."""
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([job("right"), job("wrong", slotsPerWorker=0)]))
    result = CliRunner().invoke(main, [command, str(file), "--kubeconfig", "/nowhere"])
    assert result.exit_code == 1
    assert f"{file}: wrong: spec.slotsPerWorker" in result.stderr


@pytest.mark.parametrize("command", ["validate", "submit"])
def test_a_wrong_template_beside_a_job_is_refused(command: str, tmp_path: Path) -> None:
    """All commands that read a job's file judge the file's other objects alike."""
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump_all([job("right"), {**TEMPLATE, "spec": {"job": {"backnd": "mpi"}}}]))
    result = CliRunner().invoke(main, [command, str(file), "--kubeconfig", "/nowhere"])
    assert result.exit_code == 1
    assert f"{file}: ClusterTrainingTemplate small: spec.job.backnd: is not a field here" in result.stderr
