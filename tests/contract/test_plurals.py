"""Texts for users: a number that can be 1 has its noun from `counted`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOUNS = "lines|ranks|workers|slots|steps|hosts|pods|samples|times|parameters|requests|retries|restarts|characters"
PLURAL = re.compile(rf" (?:(?:data|log|more|other|task) )?(?:{NOUNS})\b")

# Values before a plural that are never 1 there, or are not the number of it.
EXCEPTIONS = {
    "operator/ringtrain_operator/plan/outcome.py": ["sizes.stop - 1", "s.world_size", "reported"],
    "operator/ringtrain_operator/spec/metrics_rule.py": ["len(rule)"],
    "operator/ringtrain_operator/spec/reserved.py": ["workers * spec.slots"],
    "plugins/clusters/ringtrain_clusters/spark/elastic.py": ["sorted(sizes)"],
    "plugins/convert/ringtrain_convert/batchjob.py": ["pods", "pods", "pods"],
    "plugins/convert/ringtrain_convert/torchrun.py": ["most"],
    "plugins/data_service/ringtrain_data_service/session.py": ["crashes"],
    "plugins/data_service/ringtrain_data_service/tensorflow/config.py": ["dispatchers"],
    "plugins/mpi/ringtrain_mpi/launcher/hosts.py": ["host"],
    "plugins/tensorflow/ringtrain_tensorflow/keras/diloco.py": ["made"],
    "plugins/torch/ringtrain_torch/device_groups.py": ["%d ranks"],
    "worker_image/ringtrain/_core/negotiation/request.py": ["size"],
    "worker_image/ringtrain/_core/process_groups/work.py": ["size"],
    "worker_image/ringtrain/_core/world/discovery.py": ["own.size"],
    "worker_image/ringtrain/_core/world/gathering.py": ["sizes"],
    "worker_image/ringtrain/_core/world/lateness.py": ["len(near)"],
    "worker_image/ringtrain/errors.py": ["len(text)"],
    "worker_image/ringtrain/optim/replica_check.py": ["when"],
    "worker_image/ringtrain_job/agent/world_file.py": ["len(world.ring_addresses)"],
    "worker_image/ringtrain_job/cli/checks.py": ["ranks"],
    "plugins/hosts/ringtrain_hosts/hosts.py": ["tasks", "ranks"],
    "worker_image/ringtrain_job/cli/run.py": ["plan.hosts"],
    "plugins/hosts/ringtrain_hosts/table.py": ["count"],
    "worker_image/ringtrain_job/launcher/verdict.py": ["size"],
    "worker_image/ringtrain_job/logs/metrics_rule.py": ["len(rule)"],
}


def plurals(file: Path) -> Iterator[str]:
    """The source of each value of an f-string or `%d` that stands before a plural. Constants are limits, above 1."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            for value, after in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                    source = ast.unparse(value.value)
                    if PLURAL.match(str(after.value)) and not source.isupper():
                        yield source
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode(errors="replace")
            yield from re.findall(rf"%d{PLURAL.pattern}", text)


def test_a_number_that_can_be_one_is_counted() -> None:
    """A text says `1 line`, not `1 lines`."""
    found = {}
    for folder in ("client", "operator", "plugins", "worker_image"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "tests" not in file.parts and (sources := list(plurals(file))):
                found[file.relative_to(ROOT).as_posix()] = sources
    assert found == EXCEPTIONS
