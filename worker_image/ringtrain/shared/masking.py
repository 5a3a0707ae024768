"""Masking of secrets in commands and settings before they are shown or logged."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

MASK: Final = "***"
_SECRET = r"(?:token|secret|passw(?:or)?d|passphrase|credential|auth|key)s?"
# End of a word in a name: hf_token, apiKey, OPENAI_API_KEY; not tokenizer, keypoints.
_NAME = re.compile(rf"{_SECRET}(?![a-z])", re.IGNORECASE)
_ASSIGNED = re.compile(rf"(?i)([\w.-]*{_SECRET}(?![a-z0-9])[\w.-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)")
# Numbers of tokens and of keys are not secret: max_tokens=512.
_COUNT = re.compile(r"(?i)[\w.-]*(?:tokens|keys)\s*[=:]\s*\d{1,9}")
_IN_ADDRESS = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def names_secret(name: str) -> bool:
    """Return whether `name`, such as `hf_token`, is probably the name of a secret."""
    # A capital begins a word: tokenSize contains the word token, and so does max_token.
    return _NAME.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)) is not None


def without_secrets(text: str) -> str:
    """Return `text` with `***` in place of passwords in URLs and of values assigned to names of secrets."""
    return _IN_ADDRESS.sub(rf"\1{MASK}@", _ASSIGNED.sub(_masked_assignment, text))


def _masked_assignment(assigned: re.Match[str]) -> str:
    return assigned[0] if _COUNT.fullmatch(assigned[0]) else assigned[1] + MASK


def shown_command(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command with `***` in place of secrets, as in `--token=x`, `--token x` or URLs."""
    name = ""
    for word in words:
        is_secret = name and not word.startswith("-") and not _COUNT.fullmatch(f"{name}={word}")
        yield MASK if is_secret else without_secrets(word)
        is_name = word.startswith("-") and "=" not in word and " " not in word and names_secret(word)
        name = word if is_name else ""
