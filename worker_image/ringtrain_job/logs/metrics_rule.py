"""The regular expression by which a user says what a printed line reports, and what is wrong with one."""

import re

# In place of a rule: no line is read.
NONE = "none"
MOST_CHARACTERS = 1000
_GROUPS = "such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'"


def metrics_rule_problem(rule: str) -> str:
    """What is wrong with `rule`; empty: nothing."""
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
