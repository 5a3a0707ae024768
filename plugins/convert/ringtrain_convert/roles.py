"""One template for two roles whose pods differ in command, plain variables and volumes of the training container.

A shell starts the first role's command in rank 0, and the other role's command in the other ranks.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def unite_roles(first: Json, other: Json, names: tuple[str, str], notes: list[str]) -> None:
    """Make two pod templates alike, in place, as far as the differences can be expressed in one; the training
    containers are the first ones."""
    united = []
    mains = [template["spec"]["containers"][0] for template in (first, other)]
    pods = [first["spec"], other["spec"]]
    for holders, field, key in ((pods, "volumes", "name"), (mains, "volumeMounts", "mountPath")):
        both = _united_lists(holders[0].get(field) or [], holders[1].get(field) or [], key)
        if both is not None and any(both != (holder.get(field) or []) for holder in holders):
            united.append(field)
            for holder in holders:
                holder[field] = both
    commands = [[*(main.get("command") or []), *(main.get("args") or [])] for main in mains]
    if all(main.get("command") for main in mains) and (variables := _own_variables(*mains)) is not None:
        commands = [[*(["env", *own] if own else []), *words] for own, words in zip(variables, commands, strict=True)]
        if commands[0] != commands[1]:
            united += ["command or env"]
            for main in mains:
                main["command"] = _command_by_rank(*commands)
                main.pop("args", None)
    if united:
        notes.append(
            f"{' and '.join(names)} differ in {', '.join(united)}: all pods have the volumes of both, and a sh starts "
            f"the {names[0]}'s command in rank 0"
        )


def _united_lists(one: list[Json], two: list[Json], key: str) -> list[Json] | None:
    """Return the entries of both; None if an entry with the same key differs."""
    known = {entry.get(key): entry for entry in one}
    if any(known.get(entry.get(key), entry) != entry for entry in two):
        return None
    return [*one, *(entry for entry in two if entry.get(key) not in known)]


def _own_variables(first: Json, other: Json) -> tuple[list[str], list[str]] | None:
    """Remove variables that only one container has, or with another value, and return them as NAME=value; None, without
    a change, if one of them has no plain value."""
    lists = [container.get("env") or [] for container in (first, other)]
    own = [[one for one in lists[index] if one not in lists[1 - index]] for index in (0, 1)]
    if not all(_is_plain(one) for entries in own for one in entries):
        return None
    shared = [one for one in lists[0] if one in lists[1]]
    for container in (first, other):
        container.pop("env", None)
        if shared:
            container["env"] = shared
    words = [[f"{one['name']}={one.get('value') or ''}" for one in entries] for entries in own]
    return words[0], words[1]


def _is_plain(variable: Mapping[str, Any]) -> bool:
    return "valueFrom" not in variable and "$(" not in str(variable.get("value"))


def _command_by_rank(first: list[str], other: list[str]) -> list[str]:
    words = " ".join(f'"${{{number}}}"' for number in range(1, len(first) + 1))
    text = f'if [ "$RANK" = 0 ]; then exec {words}; fi; shift {len(first)}; exec "$@"'
    return ["sh", "-c", text, "sh", *first, *other]
