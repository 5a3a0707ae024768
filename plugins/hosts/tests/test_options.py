"""Options of `ringtrain run` for other hosts, and its usage errors."""

import threading
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.plugin_commands import run_core_alone

from ringtrain.shared.hosts import Host
from ringtrain_hosts.discovery import run_discovery_script
from ringtrain_hosts.elastic_plan import elastic_hosts_run
from ringtrain_hosts.horovod_options import OPTIONS
from ringtrain_hosts.horovod_values import HorovodrunValues
from ringtrain_hosts.hosts import allocated_hosts
from ringtrain_hosts.options import EXTENSION
from ringtrain_hosts.table import HostCoolDown
from ringtrain_job.cli.elastic import ElasticCommandOptions, ElasticCommandRun, elastic_run
from ringtrain_job.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-np", "3", "--min-np", "1", "-H", "node-a:1,node-b:1"],
            "node-a, node-b have only 2 slots, but -np is 3",
        ),
        (["-np", "1", "--min-np", "1", "-H", "localhost:1@x,127.0.0.1:1@y"], "names sites (y), but all"),
        (["-np", "2", "-H", "localhost:1"], "the hosts have 1 slot, but -np is 2; "),
        (["-np", "2", "-H", "localhost:many"], "'many' is not a number of slots"),
        (["-np", "1", "--host", "localhost:1"], "'--hostfile', '--hosts'"),
        (["-np", "2", "--data-workers", "1", "-H", "far:2"], "on this machine only, but the run uses far"),
        (
            ["-np", "2", "--max-np", "4", "-H", "localhost:2"],
            "the hosts have 2 slots, but -np is 4; expected as many slots, such as localhost:4",
        ),
        (["-np", "2", "--host-discovery-script", "hosts.sh"], "hosts.sh: the file does not exist"),
        (["-np", "2", "--host-discovery-script", "notes.sh"], "is not executable; chmod +x notes.sh"),
        (["-np", "2", "--host-discovery-script", "notes.sh", "-H", "localhost:2"], "both define the hosts"),
        (
            ["-np", "2", "--host-discovery-script", "notes.sh", "--hostfile", "notes.sh"],
            "--hostfile notes.sh and --host-discovery-script notes.sh: both define the hosts",
        ),
    ],
)
def test_usage_errors_of_hosts(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and the message says what to do instead."""
    (tmp_path / "notes.sh").write_text("")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["run", *words, "true"])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "launcher"),
    [
        *((option, "torchrun") for option in ("--nnodes", "--node-rank", "--local-addr", "--node_rank")),
        *((option, "accelerate") for option in ("--num-machines", "--machine_rank", "--main-process-ip")),
    ],
)
def test_options_of_other_launchers_for_hosts_get_a_hint(option: str, launcher: str) -> None:
    """The line says which option to use here."""
    result = CliRunner().invoke(main, ["run", "-np", "1", option, "2", "true"])
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert line.startswith(f"Error: {option} is {launcher}'s; ")


def test_the_core_knows_which_plugin_has_an_option() -> None:
    """Without the plugin, its visible options are refused with a line that says what to install."""
    project = tomllib.loads((Path(__file__).parents[3] / "worker_image/pyproject.toml").read_text())["project"]
    listed = project["entry-points"]["ringtrain.run.options.of_plugins"]
    shown = [option for option in EXTENSION.options if not option.hidden and option.expose_value]
    assert set(listed) == {flag.lstrip("-") for option in shown for flag in option.opts}
    assert set(listed.values()) == {"ringtrain_hosts"}
    done = run_core_alone("worker_image", "from ringtrain_job.cli.main import main\nmain()", "run", "-H", "a:2", "true")
    assert done.returncode == 2
    assert "Error: -H needs the plugin ringtrain-hosts, which is not installed: pip install" in done.stderr


def test_help_has_a_group_for_hosts() -> None:
    """It follows the groups of the core, and options of horovodrun that do nothing are last."""
    output = CliRunner().invoke(main, ["run", "--help"], terminal_width=80).output
    titles = [line for line in output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Common options:", "Elastic runs:", "Other hosts:", "Other options:",
        "Options of horovodrun that are accepted and do nothing here:",
    ]  # fmt: skip
    assert "Other hosts are reached by ssh without a password" in " ".join(output.partition("Common")[0].split())
    assert all(option.shown in output.rpartition("do nothing here:")[2] for option in OPTIONS if not option.means)


@pytest.mark.parametrize(
    ("answer", "options", "message"),
    [
        ("far away:2", [], "the script printed 'far away:2'; expected host:slots"),
        (
            "far:2",
            ["--blacklist-cooldown-range", "60", "5"],
            "--blacklist-cooldown-range 60 5: expected two numbers",
        ),
        ("far:2", ["--data-workers", "1"], "data workers run on this machine only, but the run uses far"),
    ],
)
def test_what_hosts_of_a_script_cannot_have(answer: str, options: list[str], message: str, tmp_path: Path) -> None:
    """It is refused at once: the run would wait for another answer."""
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho {answer}\n")
    script.chmod(0o755)
    words = ["run", "-np", "2", "--min-np", "1", *options, "--host-discovery-script", str(script), "true"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("first", "most", "workers", "slots"),
    [
        ({"a": 2, "b": 1}, 4, 8, 4),
        ({"a": 1}, 128, 256, 16),
        ({"a": 8}, 1024, 512, 8),
        ({"a": 1}, 1024, 2048, 2),
        ({"a": 64, "b": 64}, 2, 4, 2),
    ],
)
def test_places_of_hosts_that_come_and_go(
    first: dict[str, int], most: int, workers: int, slots: int, tmp_path: Path
) -> None:
    """All hosts may be others from one answer to the next; the launcher has at most 4096 slots to look at."""
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\n" + "".join(f"echo {name}:{count}\n" for name, count in first.items()))
    script.chmod(0o755)
    made = elastic_hosts_run(ElasticCommandRun(most, {}), HorovodrunValues(), [], script)
    assert (made.hosts.workers, made.hosts.slots) == (workers, slots)
    assert made.hosts.cooldown == HostCoolDown(2, 10, 600)


def test_fixed_hosts_of_an_elastic_run() -> None:
    """They are what a script prints that always says the same; with too few slots the run is refused."""
    world = elastic_run(3, ElasticCommandOptions(min_ranks=1))
    values = HorovodrunValues({"blacklist_cooldown_range": (5.0, 50.0)})
    made = elastic_hosts_run(world, values, [Host("a", 2), Host("b", 2)], None)
    assert made.hosts.cooldown == HostCoolDown(1, 5, 50)
    assert (
        run_discovery_script(made.variables["RINGTRAIN_HOST_DISCOVERY_SCRIPT"], 30, threading.Event()) == "a:2\nb:2\n"
    )
    assert elastic_hosts_run(world, HorovodrunValues(), [Host("localhost", 3)], None).hosts is None
    with pytest.raises(click.UsageError, match="a have only 2 slots, but -np is 3"):
        elastic_hosts_run(world, HorovodrunValues(), [Host("a", 2)], None)


def test_nodes_and_tasks_that_do_not_fit_together_are_said() -> None:
    """No node is left out in silence."""
    with pytest.raises(
        click.UsageError,
        match=r"SLURM_TASKS_PER_NODE is 2, expected numbers for 2 nodes; or define the hosts with -np and -H",
    ):
        allocated_hosts({"SLURM_JOB_NODELIST": "a[0-1]", "SLURM_TASKS_PER_NODE": "2"})
