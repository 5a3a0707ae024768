"""Ranks of a pod, derived from its devices in any of the fields that may name them."""

from typing import Any

import pytest
from support.jobs import job

from ringtrain_operator.errors import Invalid
from ringtrain_operator.spec.parse import parse_job
from ringtrain_operator.spec.template import device_count, without_amounts


def with_devices(limits: dict[str, Any], requests: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A job whose template asks for these."""
    devices = spec.pop("devices", None)
    made = job(**spec)
    worker = made["spec"]["worker"]
    worker["template"]["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": requests or {}}
    if devices:
        worker["devices"] = devices
    return made


@pytest.mark.parametrize(
    ("made", "ranks"),
    [
        pytest.param(with_devices({"nvidia.com/gpu": 4}), 4, id="limits"),
        pytest.param(with_devices({"nvidia.com/gpu": "4", "cpu": 2}), 4, id="quoted-and-cpu"),
        pytest.param(with_devices({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 2}), 2, id="requests"),
        pytest.param(with_devices({"cpu": 8, "memory": "1Gi"}), 1, id="no-device"),
        pytest.param(with_devices({"nvidia.com/gpu": 4}, slotsPerWorker=2), 2, id="slots-win"),
        pytest.param(with_devices({"nvidia.com/gpu": 4}, devices={"nvidia.com/gpu": 4}), 4, id="both"),
        pytest.param(with_devices({"rdma/hca": 1}, devices={"nvidia.com/gpu": 4}), 4, id="devices-win"),
        pytest.param(with_devices({"rdma/hca": 1, "nvidia.com/gpu": 4}, slotsPerWorker=4), 4, id="several-and-slots"),
    ],
)
def test_ranks_of_a_pod(made: dict[str, Any], ranks: int) -> None:
    """Each device gets a rank."""
    assert parse_job(made).spec.slots == ranks


@pytest.mark.parametrize(
    ("workers", "slots", "elastic", "field"),
    [
        pytest.param(256, 1024, {}, None, id="the-most"),
        pytest.param(257, 1024, {}, "spec.worker.replicas", id="gang"),
        pytest.param(2, 1024, {"minReplicas": 1, "maxReplicas": 300}, "spec.elastic.maxReplicas", id="elastic"),
    ],
)
def test_ranks_of_a_job(workers: int, slots: int, elastic: dict[str, int], field: str | None) -> None:
    """Workers and slots each have a limit, and so has their product."""
    made = with_devices({}, slotsPerWorker=slots)
    made["spec"]["worker"]["replicas"] = workers
    made["spec"] |= {"elastic": elastic} if elastic else {}
    if field is None:
        assert parse_job(made).spec.slots == slots
    else:
        with pytest.raises(Invalid, match=f"{field}.*expected at most 262,144"):
            parse_job(made)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(with_devices({"rdma/hca": 1, "nvidia.com/gpu": 4}), "set spec.slotsPerWorker", id="several"),
        pytest.param(with_devices({"nvidia.com/gpu": "1k"}), "is '1k', expected 1 to 1024 d", id="no-number"),
        pytest.param(with_devices({"nvidia.com/gpu": 1025}), "is 1025, expected 1 to 1024 devices", id="many"),
        pytest.param(
            with_devices({"nvidia.com/gpu": 4}, devices={"nvidia.com/gpu": 2}),
            "is 4 and spec.worker.devices says 2; remove it here",
            id="different",
        ),
    ],
)
def test_devices_that_do_not_say_it(made: dict[str, Any], message: str) -> None:
    """Refused with the field and the way out: one rank without a word would leave devices idle."""
    with pytest.raises(Invalid, match="resources") as caught:
        parse_job(made)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "count"),
    [(1, 1), ("8", 8), ("1024", 1024), ("1025", None), ("0", None), ("-1", None), ("01024", None), ("1.5", None)],
)
def test_an_amount_of_devices(value: Any, count: int | None) -> None:
    """A whole number from 1 to 1024, written with at most four digits."""
    assert device_count(value) == count


def test_amounts_are_removed_from_the_first_container_only() -> None:
    """Other resources and containers stay, and so does the template that was passed."""
    gpu, both = {"nvidia.com/gpu": 1}, {"limits": {"nvidia.com/gpu": 1, "cpu": 2}, "requests": None, "claims": []}
    containers = [
        {"name": "train", "resources": both},
        {"name": "proxy", "resources": {"limits": gpu}},
        {"name": "log"},
    ]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
    left = without_amounts(template, gpu)
    first = {"name": "train", "resources": {"limits": {"cpu": 2}, "claims": []}}
    assert left == {**template, "spec": {"containers": [first, *containers[1:]]}}
    assert containers[0]["resources"] == both
