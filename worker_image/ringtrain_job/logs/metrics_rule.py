"""The regular expression by which a user says what a printed line reports, and what is wrong with one."""

from __future__ import annotations

import re

# In place of a rule: no line is read.
NONE = "none"
MOST_CHARACTERS = 1000
_GROUPS = "such as 'step (?P<step>\\d+) loss (?P<loss>\\S+)'"
_MANY = re.compile(r"[*+]|\{\d*,\}|\{\d*,?(?:[2-9]|\d{2,})\}")
_HEAD = re.compile(r"\(\?(?:P<\w+>|<[=!]|[aiLmsux-]*[:)]|[=!>])|\(")
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def rule_problem(rule: str) -> str:
    """What is wrong with `rule`; empty: nothing.

    It is searched for in lines that ranks print, while training goes on. So it may not hold what takes time that
    grows exponentially with a line: a repeated group in which something repeats or has alternatives.
    """
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
    if part := _exploding(rule):
        return (
            f"repeats {part!r}, in which something repeats or has alternatives, and may never end; repeat it once"
        )
    return ""


def _exploding(rule: str) -> str:
    """The first group that is repeated and could match the same text in ever more ways; empty: none is."""
    opened, position = [(0, False)], 0
    while position < len(rule):
        if head := _HEAD.match(rule, position):
            position = head.end()
            if not head[0].endswith(")"):  # flags alone are no group
                opened.append((head.start(), False))
            continue
        if rule[position] == ")" and len(opened) > 1:
            (start, varies), position = opened.pop(), position + 1
            if varies and _MANY.match(rule, position):
                return rule[start:position]
            opened[-1] = (opened[-1][0], opened[-1][1] or varies)
        elif (many := _MANY.match(rule, position)) or rule[position] == "|":
            opened[-1] = (opened[-1][0], True)
            position += len(many[0]) if many else 1
        else:
            found = _ATOM.match(rule, position)
            position = found.end() if found else position + 1
    return ""
