"""torchrun's command lines are read as torchrun reads them, or left to the shell that they are for."""

import importlib.util
import re
from pathlib import Path

import pytest

from ringtrain_convert.torchrun import read_torchrun

PYTHON = ("python", "-u")


@pytest.mark.parametrize(
    ("words", "program", "per_node"),
    [
        (["torchrun", "--nproc_per_node=4", "a.py", "--x"], (*PYTHON, "a.py", "--x"), "4"),
        (["/opt/venv/bin/torchrun", "--nproc-per-node", "gpu", "a.py"], ("/opt/venv/bin/python3", "-u", "a.py"), "gpu"),
        (["/opt/venv/bin/python3", "-m", "torch.distributed.run", "a.py"], ("/opt/venv/bin/python3", "-u", "a.py"), ""),
        (["torchrun", "--standalone", "--virtual-local-rank", "a.py"], (*PYTHON, "a.py"), ""),
        (["torchrun", "-r3", "-t", "3", "-m", "pkg.train", "-q"], (*PYTHON, "-m", "pkg.train", "-q"), ""),
        (["torchrun", "--nproc", "2", "--no_python", "./train"], ("./train",), "2"),
        (["torchrun", "--nnodes=2", "--", "a.py"], (*PYTHON, "a.py"), ""),
        (
            ["python3", "-u", "-m", "torch.distributed.run", "--nproc-per-node=2", "a.py"],
            ("python3", "-u", "a.py"),
            "2",
        ),
        (["sh", "-c", "venv/bin/torchrun a.py"], ("venv/bin/python3", "-u", "a.py"), ""),
        (["python", "-m", "torch.distributed.launch", "a.py"], (*PYTHON, "a.py"), ""),
        (["sh", "-c", "exec torchrun --role '' 'a b.py' 'it'\"'\"'s $5'"], (*PYTHON, "a b.py", "it's $5"), ""),
        (["bash", "-c", "torchrun --rdzv_endpoint $HEAD:29500 a.py"], (*PYTHON, "a.py"), ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_torchrun_would_start(words: list[str], program: tuple[str, ...], per_node: str) -> None:
    """The program keeps its arguments; the parser knows which options have values."""
    found = read_torchrun(words)
    assert (found.program, found.per_node) == (program, per_node)


@pytest.mark.parametrize(
    "text",
    [
        "torchrun a.py && touch done",
        "torchrun a.py;sync",
        "torchrun a.py > log",
        "torchrun a.py --data $DATA",
        'torchrun a.py "$@"',
        "torchrun a.py *.txt",
        "pip install x\ntorchrun a.py",
        "torchrun a.py 'no end",
    ],
)
def test_what_only_a_shell_can_do_is_left_to_it(text: str) -> None:
    """Otherwise the program would get such a word literally."""
    assert read_torchrun(["sh", "-c", text]) is None


def test_other_programs_are_left_as_they_are() -> None:
    """Other programs may have torchrun's options, and files of its name."""
    for words in ([], ["python", "a.py", "-m", "torch.distributed.run"], ["python", "-m", "torchvision"]):
        assert read_torchrun(words) is None


def test_options_without_a_value_are_torchs_own() -> None:
    """A flag that is not known here would take the program's name for its value."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("needs torch, whose options these are")
    source = (Path(spec.origin).parent / "distributed" / "run.py").read_text()
    flags = re.findall(r"add_argument\(((?:\s*\"-[-\w]+\",)+)\s*action=(?:check_env|\"store_true\")", source)
    options = [option for names in flags for option in re.findall(r"-[-\w]+", names)]
    assert {"--standalone", "--virtual-local-rank", "-m"} <= set(options)
    for option in options:
        found = read_torchrun(["torchrun", option, "a.py"])
        assert found is not None, option
        assert (found.program[-1], len(found.own)) == ("a.py", 2), option
