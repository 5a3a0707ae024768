"""The commands that `dtj` has."""

from click.testing import CliRunner

from ringtrain_operator.cli.main import main


def test_the_help_has_what_people_use() -> None:
    """`dtj -h` lists commands for people; the operator, which a container runs, is there and not listed."""
    result = CliRunner().invoke(main, ["-h"])
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"describe", "why", "logs", "local"} <= set(listed)
    assert "operator" not in listed
    assert CliRunner().invoke(main, ["operator", "--help"]).exit_code == 0


def test_a_mistyped_command_gets_a_hint() -> None:
    """The command that was meant, where one is near."""
    result = CliRunner().invoke(main, ["lst"])
    assert result.exit_code == 2
    assert "No such command 'lst'. Did you mean 'list'?" in result.output
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output


def test_describe_is_why() -> None:
    """kubectl's word does the same."""
    assert "Say why the job is in the state" in CliRunner().invoke(main, ["describe", "--help"]).output
