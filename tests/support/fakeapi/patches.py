"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902, without `copy` and `move`)."""

from typing import Any

from support.fakeapi.errors import StatusError, bad_request


def copied(value: Any) -> Any:
    """Return a copy of a JSON document, four times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` after `patch`; null removes a member."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """`target` after all operations; a failed `test` or a missing path refuses them all with 422."""
    result = copied(target)
    for operation in operations:
        _apply(result, operation)
    return result


def _apply(document: Any, operation: dict[str, Any]) -> None:
    *parents, last = (p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:])
    holder = document
    for part in parents:
        holder = _step(holder, part, operation)
    match operation["op"]:
        case "add":
            _add(holder, last, operation["value"])
        case "replace":
            if isinstance(holder, list):
                _step(holder, last, operation)
            holder[_index(holder, last)] = operation["value"]  # kube-apiserver adds an absent member
        case "remove":
            _step(holder, last, operation)
            del holder[_index(holder, last)]
        case "test":
            if _step(holder, last, operation) != operation["value"]:
                raise StatusError(422, "Invalid", f"test failed at {operation['path']}")
        case other:
            raise bad_request(f"unknown operation {other}")


def _index(holder: Any, part: str) -> Any:
    return int(part) if isinstance(holder, list) else part


def _step(holder: Any, part: str, operation: dict[str, Any]) -> Any:
    try:
        return holder[_index(holder, part)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise StatusError(422, "Invalid", f"{operation['path']} is absent") from None


def _add(holder: Any, part: str, value: Any) -> None:
    if isinstance(holder, list):
        holder.insert(len(holder) if part == "-" else int(part), value)
    else:
        holder[part] = value
