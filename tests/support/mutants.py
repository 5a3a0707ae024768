"""Change one place of the product at a time and count the changes that its unit tests notice.

    python tests/support/mutants.py [--seed N] [--take N] [--jobs N] [AREA ...]

Draws `take` places by `seed` from all files of the areas, and tests each change in a copy of the tracked files and of
the native kernels. Prints each change that no test noticed. Runs the tests without the mark `slow`, and first those of
a file named after the changed one. Tests that take longer than LIMIT_S, and five times as long as without a change,
have noticed the change.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
OPERATOR, LIBRARY, UNIT = "operator/ringtrain_operator", "worker_image/ringtrain", "tests/unit"
_PLAN = [f"{UNIT}/operator/plan", f"{UNIT}/operator/build", f"{UNIT}/operator/observe"]
_CONTRACTS = ("spec_cases", "pod_cases", "generated")
_SPEC = [f"{UNIT}/operator/spec", *(f"tests/contract/test_{name}.py" for name in _CONTRACTS)]
# What is changed, and the tests that should notice it.
AREAS: dict[str, tuple[str, list[str]]] = {
    "plan": (f"{OPERATOR}/plan", _PLAN),
    "workers": (f"{OPERATOR}/workers", _PLAN),
    "placement": (f"{OPERATOR}/placement", _PLAN),
    "spec": (f"{OPERATOR}/spec", [*_SPEC, *_PLAN]),
    "optim": (f"{LIBRARY}/optim", [f"{UNIT}/runtime/optim", f"{UNIT}/runtime/kernels/test_optimizer_kernels.py"]),
    "checkpoint": (f"{LIBRARY}/checkpoint", [f"{UNIT}/runtime/checkpoint"]),
    "elastic": (f"{LIBRARY}/elastic", [f"{UNIT}/runtime/elastic"]),
    "verdict": ("worker_image/ringtrain_job/launcher/verdict.py", [f"{UNIT}/runtime/launcher"]),
}
LIMIT_S = 300
_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the text at `begin` of `file`, in bytes, is `old` and becomes `new`."""

    area: str
    file: str
    line: int
    begin: int
    old: str
    new: str


def mutants_of(area: str, file: str, source: str) -> Iterator[Mutant]:
    """Yield all changes of a file: comparisons, conditions, results and whole numbers."""
    data = source.encode()
    starts = [0, *accumulate(map(len, data.splitlines(keepends=True)))]

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def text(node: ast.expr) -> str:  # ast.get_source_segment splits the source each time
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return data[begin(node) : starts[node.end_lineno - 1] + node.end_col_offset].decode()

    def mutant(node: ast.expr, new: str) -> Mutant:
        return Mutant(area, file, node.lineno, begin(node), text(node), new)

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
                new = _COMPARISONS[type(operator)]
                yield mutant(node, f"({text(left)}) {new} ({text(right)})")
            case ast.BoolOp(op=operator, values=values):
                new = " or " if isinstance(operator, ast.And) else " and "
                yield mutant(node, "(" + new.join(f"({text(value)})" for value in values) + ")")
            case ast.If(test=test) | ast.IfExp(test=test):
                yield mutant(test, f"(not ({text(test)}))")
            case ast.Return(value=ast.expr() as value) if (
                not isinstance(value, ast.Constant) or value.value is not None
            ):
                yield mutant(value, "None")
            case ast.Constant(value=int(number)) if type(number) is int and number > 0:
                yield mutant(node, str(number + 1))


def drawn(areas: list[str], seed: int, take: int) -> list[Mutant]:
    """Return the changes that `seed` draws from all files of `areas`."""
    found: list[Mutant] = []
    for area in areas:
        path = ROOT / AREAS[area][0]
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.extend(mutants_of(area, str(file.relative_to(ROOT)), file.read_text()))
    return random.Random(seed).sample(found, min(take, len(found)))


def is_noticed(mutant: Mutant, copy: Path, limit_s: float) -> bool:
    """Return whether a test fails in `copy`, a copy of the repository, with the change, or runs for `limit_s`."""
    file = copy / mutant.file
    source = file.read_bytes()
    end = mutant.begin + len(mutant.old.encode())
    file.write_bytes(source[: mutant.begin] + mutant.new.encode() + source[end:])
    try:
        tests = _files(AREAS[mutant.area][1], copy)
        return not do_pass(sorted(tests, key=lambda test: Path(test).name != f"test_{file.stem}.py"), copy, limit_s)
    finally:
        file.write_bytes(source)


def _files(tests: Sequence[str], copy: Path) -> list[str]:
    """Return the files of these files and folders: pytest runs files in the order in which they are passed."""
    found = [[copy / test] if test.endswith(".py") else sorted((copy / test).rglob("test_*.py")) for test in tests]
    return [str(path.relative_to(copy)) for paths in found for path in paths]


def do_pass(tests: Sequence[str], copy: Path, limit_s: float) -> bool:
    """Return whether these tests pass in `copy` within `limit_s`. Raises RuntimeError if none ran."""
    paths = [copy / part for part in ("operator", "client", "worker_image", "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["timeout", str(limit_s), sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider"]
    words += ["-m", "not slow and not kueue", *tests]
    run = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
    if run.returncode not in (0, 1, 2, 4, 124):  # 2 and 4: a module or conftest cannot be imported; 124: the limit
        raise RuntimeError(f"pytest ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return run.returncode == 0


def main() -> None:
    """Draw, test and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", choices=[[], *AREAS], metavar="AREA", help=", ".join(AREAS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--take", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2, help="changes tested at the same time")
    options = parser.parse_args()
    mutants = drawn(options.areas or list(AREAS), options.seed, options.take)
    noticed: dict[str, list[bool]] = {}
    limits_s: dict[tuple[str, ...], float] = {}  # by tests: the machine may be busy
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        kernels = [str(path.relative_to(ROOT)) for path in (ROOT / "worker_image/ringtrain").rglob("*.so")]
        for index in range(options.jobs):
            for name in [*tracked.rstrip("\0").split("\0"), *kernels]:
                target = Path(folder, str(index), name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
            copies.put(Path(folder, str(index)))

        def tested(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return is_noticed(mutant, copy, limits_s[tuple(AREAS[mutant.area][1])])
            finally:
                copies.put(copy)

        for tests in {tuple(AREAS[mutant.area][1]) for mutant in mutants}:
            began = time.monotonic()
            if not do_pass(tests, Path(folder, "0"), 10 * LIMIT_S):
                raise SystemExit(f"{' '.join(tests)}: fail without a change; nothing can be judged by them")
            limits_s[tests] = max(LIMIT_S, 5 * (time.monotonic() - began))
        for mutant, was_noticed in zip(mutants, pool.map(tested, mutants), strict=True):
            noticed.setdefault(mutant.area, []).append(was_noticed)
            if not was_noticed:
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    for area, results in noticed.items():
        print(f"{area}: {sum(results)} of {len(results)} noticed")
    everything = [result for results in noticed.values() for result in results]
    print(f"seed {options.seed}: {sum(everything)} of {len(everything)} noticed")


if __name__ == "__main__":
    main()
