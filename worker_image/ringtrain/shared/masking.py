"""Secrets do not leave the process that has them: what is shown of commands and of settings by name."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

MASK: Final = "***"
_SECRET = r"(?:token|secret|passw(?:or)?d|passphrase|credential|auth|key)s?"
# The end of a word of a name: hf_token, apiKey, OPENAI_API_KEY; not tokenizer, keypoints.
_NAME = re.compile(rf"{_SECRET}(?![a-z])", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?i)([\w.-]*{_SECRET}(?![a-z0-9])[\w.-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)")
# Numbers of tokens and of keys are no secrets: max_tokens=512.
_COUNT = re.compile(r"(?i)[\w.-]*(?:tokens|keys)\s*[=:]\s*\d{1,9}")
_IN_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def names_secret(name: str) -> bool:
    """Whether what has this `name` is a secret, to all appearance."""
    # A capital begins a word: tokenSize has the word token, and so has max_token.
    return _NAME.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def without_secrets(text: str) -> str:
    """`text` with `***` for passwords in addresses, and for what is assigned to the name of a secret."""
    return _IN_ADDRESS.sub(rf"\1{MASK}@", _ASSIGNED.sub(_masked_assignment, text))


def _masked_assignment(assigned: re.Match[str]) -> str:
    return assigned[0] if _COUNT.fullmatch(assigned[0]) else assigned[1] + MASK


def shown_command(words: Sequence[str]) -> Iterator[str]:
    """The words of a command, without secrets in `--token=x`, `--token x`, `TOKEN=x`, and in addresses."""
    name = ""
    for word in words:
        is_secret = name and not word.startswith("-") and not _COUNT.fullmatch(f"{name}={word}")
        yield MASK if is_secret else without_secrets(word)
        is_name = word.startswith("-") and "=" not in word and " " not in word and names_secret(word)
        name = word if is_name else ""
