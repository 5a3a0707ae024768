"""Roles of a job whose pods become its workers: the pods of all roles have one template, apart from the first pod."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringtrain_operator.errors import Invalid, Problem, counted

Json = dict[str, Any]


@dataclass(frozen=True)
class Role:
    """Pods of one template. `path`: path of the template's field. `retries`: backoffLimit of the template's Job.
    `owner`: metadata of the object with the template. `per_job`: pods of each Job of a JobSet; 0 without Jobs."""

    name: str
    path: str
    pods: int
    template: Json
    retries: int = 0
    owner: Mapping[str, Any] = field(default_factory=dict)
    per_job: int = 0

    @property
    def text(self) -> str:
        """Commands and arguments of all containers, one container a line."""
        return "\n".join(map(command_text, self.template["spec"]["containers"]))


def command_text(container: Mapping[str, Any]) -> str:
    """Return the words of a container's command and arguments, separated by spaces."""
    return " ".join(map(str, (*(container.get("command") or ()), *(container.get("args") or ()))))


def side_texts(template: Json) -> str:
    """Return commands, arguments and variables of all containers but the training container, which is the first."""
    pod = template["spec"]
    others = [*pod["containers"][1:], *(pod.get("initContainers") or ())]
    return str([[one.get(field) for field in ("command", "args", "env")] for one in others])


class ConvertedPod(NamedTuple):
    """A converted pod template, without the devices of its training container, and the number of ranks of a pod."""

    template: Json
    devices: Mapping[str, int]
    slots: int


def worker_of_roles(
    roles: Sequence[Role], convert: Callable[[Role, bool], ConvertedPod], notes: list[str]
) -> tuple[Json, int]:
    """Return spec.worker, and the number of ranks of a pod.

    The first role may have another template if it has one pod and there are at most two roles. Its template becomes
    rank0Template. Raises Invalid if roles differ in another way, or in devices or ranks per pod. `convert(role, alone)`
    returns the converted pod of a role; `alone`: whether no other role gets this pod's template.
    """
    first, *others = roles
    differing = list(
        dict.fromkeys(path for role in others for path in _value_differences(first.template, role.template))
    )
    if differing and (len(others) > 1 or first.pods > 1):
        several = "there are several" if first.pods > 1 else "only the first role may differ"
        message = f"differs from {first.name}'s pods ({', '.join(differing[:3])}), and {several}; make them equal"
        raise Invalid([Problem(roles[-1].path, message)])
    last = roles[-1] if differing else first
    made = convert(last, bool(differing) or not others)
    worker: Json = {"replicas": sum(role.pods for role in roles)}
    if made.devices:
        worker["devices"] = dict(made.devices)
    worker["template"] = made.template
    if differing:
        own = convert(first, True)
        if (own.devices, own.slots) != (made.devices, made.slots):
            message = (
                f"has {_size_text(made)} in each pod, and {first.name}'s pod has {_size_text(own)}; all workers need "
                "the same"
            )
            raise Invalid([Problem(last.path, message)])
        worker["rank0Template"] = own.template
        more = f" and {len(differing) - 4} other fields" if len(differing) > 5 else ""
        text = ", ".join(differing[:4] if more else differing)
        notes.append(f"{first.name} differs from {last.name} in {text}{more}: it has rank0Template")
    if others:
        names = " and ".join(role.name for role in roles)
        notes.append(f"{names} are workers; ranks count from the {first.name}")
    return worker, made.slots


def _value_differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two values differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _value_differences(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _value_differences(*pair, f"{path}[{index}]")
    elif (one or None) != (other or None):
        yield path


def _size_text(pod: ConvertedPod) -> str:
    devices = " and ".join(f"{count} {name}" for name, count in sorted(pod.devices.items())) or "no devices"
    return f"{devices} for {counted(pod.slots, 'rank')}"
