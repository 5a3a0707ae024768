# Generated from worker_image/ringtrain_job/logs/metrics_rule.py: operator and runtime never import each other.
"""The user's regular expression for reports in printed lines, and its validation."""

import re

# Value for a rule that reads no line.
NONE = "none"
MOST_CHARACTERS = 1000
_GROUPS = "such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'"


def metrics_rule_problem(rule: str) -> str:
    """Return the problem of `rule`; empty if it is valid."""
    if rule == NONE:
        return ""
    if len(rule) > MOST_CHARACTERS:
        return f"has {len(rule)} characters; expected at most {MOST_CHARACTERS}"
    try:
        compiled = re.compile(rule)
    except (re.error, RecursionError, OverflowError) as exc:
        return f"is no regular expression: {exc}; expected one with named groups, {_GROUPS}"
    if not compiled.groupindex:
        return f"has no named group; expected some, {_GROUPS}, or {NONE}"
    return ""
