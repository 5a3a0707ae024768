"""A job on this machine whose first worker has a template of its own, also in the attempt after a failure."""

from support.jobs import job
from support.local import Start

OTHERS = "import os, ringtrain; ringtrain.init(); print('other', os.environ['RANK'], os.environ.get('PART'))"
FIRST = """
import os, pathlib, ringtrain
ringtrain.init()
mark = pathlib.Path("/marks/failed")
print("first", os.environ["RANK"], os.environ["PART"])
if not mark.exists():
    mark.touch()
    raise SystemExit(3)
"""


def test_a_template_for_worker_0(start: Start) -> None:
    """Its command, variable and claim are those of rank0Template in both attempts."""
    container = {"name": "first", "image": "first", "command": ["python", "-c", FIRST.replace("/marks", "$(MARKS)")]}
    container |= {
        "env": [{"name": "PART", "value": "one"}, {"name": "MARKS", "value": "/marks"}],
        "volumeMounts": [{"name": "marks", "mountPath": "/marks"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "marks", "persistentVolumeClaim": {"claimName": "marks"}}]}
    worker = {**job()["spec"]["worker"], "rank0Template": {"spec": pod}}
    local = start("python", "-c", OTHERS, worker=worker, runPolicy={"backoffLimit": 1})
    assert "Succeeded" in local.finish(0)
    for attempt in (1, 2):
        assert "[0] first 0 one" in local.log(attempt)
    assert "[1] other 1 None" in local.log(2)
