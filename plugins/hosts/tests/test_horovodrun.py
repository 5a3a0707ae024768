"""`horovodrun`, and the options that `ringtrain run` has from it."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ringtrain._core.world.config import WorkerConfig
from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.horovod_variables import COUNTERPARTS, with_counterparts
from ringtrain.shared.hosts import Host
from ringtrain.shared.rank_settings import RankProcessSettings, WorldWaits
from ringtrain_hosts.horovod_options import OPTIONS
from ringtrain_hosts.horovod_values import HorovodrunValues, read_config_file
from ringtrain_hosts.horovodrun import main as horovodrun
from ringtrain_hosts.hosts import find_hosts
from ringtrain_hosts.options import EXTENSION
from ringtrain_job.cli.elastic import ElasticCommandOptions
from ringtrain_job.cli.run import run
from ringtrain_job.cli.run_extension import RunRequest
from ringtrain_job.logs.layout import AttemptFiles

PAGE = (Path(__file__).parents[3] / "docs/migrate-from-horovod.md").read_text()
# All options of Horovod 0.28's launcher, from its documentation.
HOROVODS = re.findall(
    r"\S+",
    """
    -v --version -np --num-proc -cb --check-build --disable-cache --start-timeout
    --network-interfaces --network-interface --output-filename --verbose --config-file -p --ssh-port
    -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity
    --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather
    --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune --no-autotune
    --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
    --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc
    --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
    --blacklist-cooldown-range --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
    --no-stall-check --stall-check --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args
    --tcp --binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level
    --log-with-timestamp --log-without-timestamp -prefix-timestamp --prefix-output-with-timestamp
    --log-hide-timestamp --no-log-hide-timestamp -H --hosts -hostfile --hostfile
    --host-discovery-script --gloo --mpi --jsrun
    """,
)


def flags(command: click.Command) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}


def test_every_option_of_horovodrun_is_accepted() -> None:
    """By both commands; only -v, which is --verbose of one, is --version of the other."""
    assert set(HOROVODS) - flags(horovodrun) == set()
    assert set(HOROVODS) - flags(run) == {"--version"}


def test_the_page_has_every_option() -> None:
    """With the line that a user of one without meaning gets."""
    rows = dict(re.findall(r"^\| `([^|]+)` \| (.+) \|$", PAGE, re.MULTILINE))
    by_flag = {flag: text for shown, text in rows.items() for flag in shown.split("`, `")}
    assert set(HOROVODS) - set(by_flag) == set()
    for option in OPTIONS:
        if not option.means:
            assert by_flag[option.shown] == f"no meaning: {option.here}"


def test_the_page_has_every_variable() -> None:
    """Horovod's and ours in one row, with what differs."""
    for row in COUNTERPARTS:
        assert f"| `{row.horovod}` | `{row.ours}`" in PAGE
        assert row.note in PAGE


def test_options_without_meaning_are_explained() -> None:
    """In one line each, where they were given; false is given, too."""
    values = HorovodrunValues({"gloo": True, "mpi_args": "-x A", "autotune": False, "ssh_port": 2222, "mpi": None})
    assert [line.split()[0] for line in values.notes] == ["--gloo", "--mpi-args", "--autotune"]
    assert (
        values.notes[0] == "--gloo is accepted but has no effect: "
        "ranks find each other through the launcher, without Gloo"
    )


def test_options_become_variables() -> None:
    """Options become variables of launcher, agents and ranks; a stall timeout of 0 becomes the longest possible."""
    given = {"start_timeout": 30.0, "timeline_filename": "t.json", "log_level": "FATAL"}
    assert HorovodrunValues({**given, "stall_check_shutdown_time_seconds": 0.0}).variables == {
        contract.ENV_START_TIMEOUT: "30",
        contract.ENV_TIMELINE: "t.json",
        contract.ENV_LOG_LEVEL: "critical",
        contract.ENV_STALL_TIMEOUT: "1000000",
    }
    off = HorovodrunValues({"no_stall_check": True, "stall_check_shutdown_time_seconds": 20.0})
    assert off.variables == {contract.ENV_STALL_TIMEOUT: "1000000", contract.ENV_STALL_WARNING: "1000000"}
    assert HorovodrunValues({"stall_check_warning_time_seconds": 5.0}).variables == {contract.ENV_STALL_WARNING: "5"}
    values = HorovodrunValues({"stall_check_shutdown_time_seconds": 90.0, "network_interfaces": "eth0, lo"})
    assert values.variables == {contract.ENV_STALL_TIMEOUT: "90"}
    assert values.ssh.interfaces == ("eth0", "lo")


def test_outputs_of_ranks_are_linked(tmp_path: Path) -> None:
    """rank.N/stdout, N with as many digits as the last rank has; a link of a run before is replaced."""
    files = AttemptFiles(tmp_path / "run")
    files.directory.mkdir()
    for _ in range(2):
        HorovodrunValues({"output_filename": str(tmp_path / "out")}).link_outputs(files, 11)
    files.rank_log(3).write_text("line\n")
    assert (tmp_path / "out/rank.03/stdout").read_text() == "line\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(click.UsageError, match="choose a directory that you can write"):
        HorovodrunValues({"output_filename": str(tmp_path / "file")}).link_outputs(files, 1)


def test_a_config_file(tmp_path: Path) -> None:
    """Keys of Horovod's form become options; a check that is not enabled is the option that turns it off."""
    text = (
        "verbose_of_none: \ncontroller: gloo\nparams:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 5\n"
        "timeline:\n  filename: t.json\nstall_check:\n  enabled: false\nlogging:\n  level: INFO\n"
    )
    (tmp_path / "config.yaml").write_text(text)
    assert read_config_file(str(tmp_path / "config.yaml")) == {
        "fusion_threshold_mb": 32,
        "cycle_time_ms": 5.0,
        "timeline_filename": "t.json",
        "log_level": "info",
        "gloo": True,
        "no_stall_check": True,
    }


def test_settings_that_are_none_are_named_and_passed_over(tmp_path: Path) -> None:
    """As Horovod does with keys that it does not know."""
    (tmp_path / "config.yaml").write_text("timeline:\n  file: x\n  filename: t.json\nnew: 1\n")
    values = HorovodrunValues(read_config_file(str(tmp_path / "config.yaml")))
    assert values.variables == {contract.ENV_TIMELINE: "t.json"}
    assert [note.partition("config.yaml: ")[2] for note in values.notes] == [
        "timeline.file, new: not a setting of Horovod; ignored"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  fusion_threshold_mb: many\n", "params.fusion_threshold_mb: 'many' is not a valid integer"),
        ("logging:\n  level: LOUD\n", "logging.level: 'LOUD' is not one of"),
        ("controller: jsrun\n", "controller is 'jsrun'; expected gloo or mpi"),
        ("- a\n", "expected settings by name"),
        ("a: [\n", "is not YAML"),
        (None, "No such file"),
    ],
    ids=["wrong-type", "wrong-choice", "wrong-controller", "a-list", "no-yaml", "no-file"],
)
def test_a_config_file_with_an_error(text: str | None, message: str, tmp_path: Path) -> None:
    """The message names file, key and what was expected, and nothing is started."""
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(horovodrun, ["-np", "1", "--config-file", str(path), "true"])
    assert result.exit_code == 2
    assert "--config-file" in result.output
    assert message in " ".join(result.output.split()), result.output


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    """An option that both give has the command line's value; what the file alone gives counts."""
    (tmp_path / "config.yaml").write_text("timeline:\n  filename: t.json\nlogging:\n  level: info\n")
    unset = dict.fromkeys((option.name for option in EXTENSION.options), None)
    given = {**unset, "hosts": "", "config_file": str(tmp_path / "config.yaml"), "log_level": "error"}
    plan = EXTENSION.plan(RunRequest(1, ElasticCommandOptions(), given))
    assert plan.variables == {contract.ENV_TIMELINE: "t.json", contract.ENV_LOG_LEVEL: "error"}


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        ("", 3, [Host("localhost", 3)]),
        ("a:2,b:2", 4, [Host("a", 2), Host("b", 2)]),
        ("a:2,b:2", 2, [Host("a", 2)]),
        ("a,b", 2, [Host("a", 1), Host("b", 1)]),
        ("a:1,b:2,a:1", 4, [Host("a", 2), Host("b", 2)]),
        ("[::1]:2", 2, [Host("::1", 2)]),
    ],
    ids=["none", "two", "the-first-is-enough", "without-slots", "twice", "ipv6"],
)
def test_hosts_are_filled_one_after_the_other(text: str, ranks: int, expected: list[Host]) -> None:
    """As Horovod does: the next host gets what has no room on the ones before."""
    assert find_hosts(text, None, ranks) == expected


def test_a_hostfile(tmp_path: Path) -> None:
    """Lines of Horovod's and of Open MPI's form; comments and empty lines are left out."""
    path = tmp_path / "hosts"
    path.write_text("# two hosts\n\na slots=2\nb slots=2 max_slots=4  # the second\n")
    assert find_hosts("", str(path), 4) == [Host("a", 2), Host("b", 2)]
    path.write_text("::1 slots=1\n[fe80::2]\nfe80::3\nd:1\n")
    assert find_hosts("", str(path), 4) == [Host(name, 1) for name in ("::1", "fe80::2", "fe80::3", "d")]
    path.write_text("a slots=2 site=zone-1\nb slots=2 max_slots=4 site=zone.2\n")
    assert find_hosts("", str(path), 4) == [Host("a", 2, "zone-1"), Host("b", 2, "zone.2")]
    assert find_hosts("a:2@zone-1,[::1]:2@zone.2", None, 4) == [Host("a", 2, "zone-1"), Host("::1", 2, "zone.2")]
    assert find_hosts("me@a:2@x,me@b:2@y", None, 4) == [Host("me@a", 2, "x"), Host("me@b", 2, "y")]
    assert find_hosts("me@a:2,me@b:2", None, 4) == [Host("me@a", 2), Host("me@b", 2)]  # as ssh has it


@pytest.mark.parametrize(
    ("content", "hosts", "message"),
    [
        ("a slots=2\n", "a:2", "both define the hosts"),
        ("a two\n", "", "line 1: 'a two' is not a host; expected HOST slots=N, such as localhost slots=4"),
        ("a slots=two\n", "", "line 1: 'two' is not a number of slots; expected a:4"),
        ("# none\n", "", "the file has no host"),
        (None, "", "No such file"),
        (
            "a slots=3\nb slots=3\n",
            "",
            "-np 4 ranks would be placed as a 3, b 1; expected the same number of ranks on each host",
        ),
        ("a slots=1\n", "", "the hosts have 1 slot, but -np is 4; expected as many slots, such as a:4"),
        ("-oProxyCommand=x slots=4\n", "", "is not a host name"),
        ("a:2 slots=4\n", "", "line 1: 'a:2 slots=4' has two numbers of slots"),
        ("a:2 site=x\nb:2\n", "", "b is at no site, and a at x; expected a site for each host, or none"),
        ("a:2 site=x\na:2 site=y\n", "", "a is at y, and a at x; expected a site for each host"),
        ("a:4 site=x,y\n", "", "line 1: 'x,y' is not a site name; expected a:4@site1"),
    ],
    ids=[
        "two-places",
        "no-slots",
        "no-number",
        "empty",
        "no-file",
        "uneven",
        "too-few",
        "an-option",
        "twice",
        "some-sites",
        "two-sites",
        "no-site",
    ],
)
def test_hosts_that_cannot_be(content: str | None, hosts: str, message: str, tmp_path: Path) -> None:
    """The message names the file, the line, and what was expected."""
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(click.UsageError) as caught:
        find_hosts(hosts, str(path), 4)
    assert message in caught.value.message


def test_check_build_needs_nothing_else() -> None:
    """Horovod's lists, without -np and a command."""
    result = CliRunner().invoke(horovodrun, ["--check-build"])
    assert result.exit_code == 0
    assert re.search(r"\[[ X]\] PyTorch\n", result.output)
    assert "[X] gRPC" in result.output
    assert "[ ] MXNet" in result.output


def test_version() -> None:
    """-v is the version of horovodrun."""
    assert "version" in CliRunner().invoke(horovodrun, ["-v"]).output


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOROVOD_TIMELINE": "/h.json"}, {"timeline": Path("/h.json")}),
        ({"HOROVOD_TIMELINE": "/h.json", "RINGTRAIN_TIMELINE": "/r.json"}, {"timeline": Path("/r.json")}),
        ({"HOROVOD_TIMELINE": "DYNAMIC"}, {"timeline": None}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, {"stall_timeout_s": 90.0}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, {"stall_timeout_s": 1e6}),
        (
            {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"},
            {"stall_timeout_s": 1e6, "stall_warning_s": 1e6},
        ),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, {"stall_timeout_s": 600.0, "stall_warning_s": 30.0}),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}, {"stall_warning_s": 5.0}),
        ({"HOROVOD_LOG_LEVEL": "TRACE"}, {"log_level": "debug"}),
        ({"HOROVOD_LOG_LEVEL": "fatal", "RINGTRAIN_LOG_LEVEL": "info"}, {"log_level": "info"}),
    ],
    ids=[
        "timeline",
        "ours-wins",
        "dynamic",
        "stall",
        "stall-never",
        "no-check",
        "check",
        "check-time",
        "trace",
        "our-level-wins",
    ],
)
def test_horovods_variables_count_where_ours_are_not_set(
    environment: dict[str, str], expected: dict[str, object]
) -> None:
    """A rank reads them."""
    read = with_counterparts(environment)
    found = vars(WorldWaits.from_env(read)) | vars(RankProcessSettings.from_env(read))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_LOG_LEVEL"])
def test_a_variable_of_horovods_with_a_wrong_value(name: str) -> None:
    """The message has the name that was set."""
    with pytest.raises(ConfigurationError, match=f'{name} is "often"; expected'):
        WorkerConfig.from_env({name: "often"})


def test_start_timeouts_of_horovod() -> None:
    """HOROVOD_START_TIMEOUT counts before HOROVOD_ELASTIC_TIMEOUT."""
    both = {"HOROVOD_ELASTIC_TIMEOUT": "500", "HOROVOD_START_TIMEOUT": "20"}
    assert with_counterparts(both)[contract.ENV_START_TIMEOUT] == "20"
    assert with_counterparts({"HOROVOD_ELASTIC_TIMEOUT": "500"})[contract.ENV_START_TIMEOUT] == "500"
