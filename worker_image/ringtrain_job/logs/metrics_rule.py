"""Check of the user's regular expression (`--metrics`) that extracts reports from printed lines."""

import re

# Value for a rule that reads no line.
NONE = "none"
MOST_CHARACTERS = 1000
_GROUPS = "such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'"


def metrics_rule_problem(rule: str) -> str:
    """Return what is wrong with the regular expression `rule`; empty if it is valid."""
    if rule == NONE:
        return ""
    if len(rule) > MOST_CHARACTERS:
        return f"has {len(rule)} characters; expected at most {MOST_CHARACTERS}"
    try:
        compiled = re.compile(rule)
    except (re.error, RecursionError, OverflowError) as exc:
        where = f" at character {exc.pos + 1}" if isinstance(exc, re.error) and exc.pos is not None else ""
        return f"is no valid regular expression{where}; expected one with named groups, {_GROUPS}"
    if not compiled.groupindex:
        return f"has no named group; expected some, {_GROUPS}, or {NONE}"
    return ""
