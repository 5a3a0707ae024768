"""A real Prometheus: Debian's package, which brings promtool."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gang import DEADLINE_S, until
from support.ports import free_ports

NEEDS_PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs prometheus and promtool: apt-get install prometheus",
)
RULES = Path(__file__).parents[2] / "charts" / "ringtrain-operator" / "files" / "rules.yaml"
SCRAPES_EVERY_S = 0.5


class Prometheus:
    """A Prometheus that scrapes."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an answer of its API. Raises AssertionError if the query is invalid."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the present series of an expression."""
        return self.ask("query", query=expression)["result"]

    def is_up(self) -> bool:
        """Return whether it answers queries; it returns 503 while it starts."""
        try:
            with urllib.request.urlopen(f"{self._url}/query?query=1", timeout=DEADLINE_S):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False


@contextmanager
def prometheus(directory: Path, targets: Mapping[str, Sequence[int]]) -> Iterator[Prometheus]:
    """Run a Prometheus with our rules that scrapes ports of this host, by the name of a scrape job."""
    configuration = {
        "global": {"scrape_interval": f"{int(SCRAPES_EVERY_S * 1000)}ms", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for name, ports in targets.items()
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    (port,) = free_ports(1)
    words = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "prometheus.err").open("wb") as errors:
        process = subprocess.Popen(words, stderr=errors, cwd=directory)
    try:
        found = Prometheus(port)
        until("Prometheus answers", found.is_up)
        yield found
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
