"""Host names and indexes of pods of a JobSet, Job or Volcano Job, by which its programs find each other."""

import re
from typing import Any

from ringtrain_convert.roles import Role
from ringtrain_convert.torchrun import hosts_of_ranks, quoted_command_word

Json = dict[str, Any]

# Text before a host name, which is not in a path; after it, the namespace by its name or by a variable of the script.
_BEFORE_HOST = r"(?:(?<=//)|(?<![\w./-]))"
_DOMAIN = r"(?:\.(?:[\w-]+|\$\{?\w+\}?))*"


def host_of_first_pod(kind: str, name: str, first: Role) -> re.Pattern[str]:
    """Return a pattern of the host names of the first pod of `first`. `name`: name of the original job."""
    pod = {"job": "0", "jobset": f"{first.name}-0-0", "volcano": f"{first.name}-0"}[kind]
    subdomain = first.template["spec"].get("subdomain") or (name if kind == "volcano" else "")
    service = r"[\w-]+" if kind == "jobset" else re.escape(str(subdomain))
    if not name or not service:
        return re.compile(r"(?!)")
    return re.compile(rf"{_BEFORE_HOST}{re.escape(f'{name}-{pod}')}\.{service}{_DOMAIN}(?![\w-])")


def host_of_any_pod(name: str, text: str) -> str:
    """Return the first host name in `text` that belongs to the job `name`; empty if there is none."""
    found = re.search(rf"{_BEFORE_HOST}{re.escape(name)}(?:-(?:[\w-]+-)?\d+(?![\w-])|\.\S*\bsvc\b)", text)
    return found[0] if found and name else ""


def take_hosts(main: Json, host: re.Pattern[str], notes: list[str]) -> dict[str, str]:
    """Replace host names in a container's command and arguments by $(MASTER_ADDR), in place.

    Variables that contain such a name are removed, and returned as a shell's text.
    """
    given: dict[str, str] = {}
    found: set[str] = set()
    for field in ("command", "args"):
        if words := main.get(field):
            found |= {name for word in words for name in host.findall(word)}
            main[field] = [host.sub("$(MASTER_ADDR)", word) for word in words]
    for variable in list(main.get("env") or ()):
        name, value = str(variable.get("name") or ""), str(variable.get("value") or "")
        names, references = host.findall(value), [other for other in given if f"$({other})" in value]
        if re.fullmatch(r"[A-Za-z_]\w*", name) and (names or references):  # a shell can set no other names
            found |= {*names}
            given[name] = "$MASTER_ADDR".join(map(quoted_command_word, host.split(value)))
            for other in references:
                given[name] = given[name].replace(f"\\$({other})", given[other])
            main["env"].remove(variable)
    notes += [f"{name} becomes $MASTER_ADDR, the address of the first worker" for name in sorted(found)]
    return given


def index_of_pod(roles: list[Role]) -> str:
    """Return a shell's text for the index of a pod in its Job, or in its task, by its rank."""
    text, end = "", sum(role.pods for role in roles)
    for role in reversed(roles):
        start = end - role.pods
        own = f"RANK - {start}" if start else "RANK"
        if 0 < role.per_job < role.pods:
            own = f"({own}) % {role.per_job}"
        text, end = f"RANK < {end} ? {own} : {text}" if text else own, start
    return "$RANK" if text == "RANK" else f"$(({text}))"


def hosts_of_volcano(roles: list[Role], text: str) -> dict[str, str]:
    """Return the variables with hosts and numbers of pods, which Volcano sets for each task, that `text` reads."""
    given, start = {}, 1
    for role in roles:
        task, end = f"VC_{role.name.replace('-', '_').upper()}", start + role.pods - 1
        given[f"{task}_NUM"] = str(role.pods)
        given[f"{task}_HOSTS"] = hosts_of_ranks(f"{start}-{end}")
        start = end + 1
    return {name: value for name, value in given.items() if name in text}
