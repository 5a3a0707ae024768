"""Certificates and token of the job, read from the files in RINGTRAIN_SECRET_DIR."""

from dataclasses import dataclass, field
from pathlib import Path

from ringtrain.errors import ConfigurationError, quoted
from ringtrain.shared import contract
from ringtrain.shared.environment import EnvironmentVariables
from ringtrain.shared.tls import CERTIFICATE_FILES, TlsCertificates


@dataclass(frozen=True)
class Secrets:
    """Credentials of a pod. Without `tls`, control messages use only loopback. If `token` is empty, no token is
    required."""

    tls: TlsCertificates | None = None
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    directory: Path | None = None


def dns_name(role: str, uid: str) -> str:
    """Return the DNS name that a certificate of `role` in the job `uid` contains."""
    return f"{role}.{uid}.ringtrain"


def load_secrets(env: EnvironmentVariables) -> Secrets:
    """Return the secrets in RINGTRAIN_SECRET_DIR; no secrets if the variable is unset and the default directory does
    not exist.

    A directory with only the token is accepted (control uses only loopback). Raises ConfigurationError if the directory
    was named but is absent, or if it has neither a token nor certificates, or only some of the certificate files.
    """
    named = env.optional(contract.ENV_SECRET_DIR)
    directory = Path(named or contract.SECRET_DIR)
    setting = f"{contract.ENV_SECRET_DIR}={quoted(str(directory))}"
    try:
        if named or directory.is_dir():
            return _load_secret(directory, setting)
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "the token is not UTF-8"
        raise ConfigurationError(f"{setting}: {why}") from exc
    return Secrets()


def _load_secret(directory: Path, setting: str) -> Secrets:
    if not directory.is_dir():
        raise ConfigurationError(f"{setting}: the directory does not exist")
    present = [name for name in CERTIFICATE_FILES if (directory / name).is_file()]
    missing = sorted(set(CERTIFICATE_FILES) - set(present))
    token_file = directory / "token"
    if (present and missing) or not (present or token_file.is_file()):
        raise ConfigurationError(f"{setting}: the directory lacks {', '.join(missing)}")
    tls = TlsCertificates.read(directory) if present else None
    if not token_file.is_file():
        return Secrets(tls, directory=directory)
    return Secrets(tls, token_file.read_text().strip(), token_file, directory)
