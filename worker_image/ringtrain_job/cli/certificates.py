"""Certificate authority, certificates and token of one run over several hosts, created with `openssl`."""

import secrets
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ringtrain.errors import ConfigurationError
from ringtrain.shared import contract
from ringtrain.shared.secrets import dns_name
from ringtrain.shared.tls import CERTIFICATE_FILES

# Files in a role's directory, with the names that RINGTRAIN_SECRET_DIR requires.
SECRET_FILES: Final = (*CERTIFICATE_FILES, "token")
# As in the operator: longer than any run. It begins a day ago, because clocks of hosts differ.
_VALIDITY: Final = timedelta(days=3650)
_CLOCK_SKEW: Final = timedelta(days=1)
_DEADLINE_S: Final = 60
_SETTINGS: Final = """
[req]
distinguished_name = name
[name]
[ca]
default_ca = run
[run]
database = index.txt
serial = serial
new_certs_dir = .
default_md = sha256
policy = anything
unique_subject = no
[anything]
commonName = supplied
[authority]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
"""
_ROLE: Final = """
[{role}]
subjectAltName = DNS:{name}
authorityKeyIdentifier = keyid
"""


def write_secrets(directory: Path, uid: str) -> None:
    """Create the certificates and the token of run `uid` in `directory`, readable by this user only.

    Each role gets a directory with the files of the operator's Secret. The CA's key is deleted. Raises
    ConfigurationError if openssl is missing or fails.
    """
    roles = (contract.ROLE_LAUNCHER, contract.ROLE_WORKER)
    token = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        work = Path(temporary)
        names = "".join(_ROLE.format(role=role, name=dns_name(role, uid)) for role in roles)
        (work / "settings").write_text(_SETTINGS + names)
        (work / "index.txt").touch()
        (work / "serial").write_text(secrets.token_hex(8) + "\n")
        _certificate(work, "ca", "ringtrain run", "authority", "-selfsign", "-keyfile", "ca.key")
        for role in roles:
            _certificate(work, role, role, role, "-cert", "ca.crt", "-keyfile", "ca.key")
            (directory / role).mkdir(mode=0o700)
            for source, target in (("ca.crt", "ca.crt"), (f"{role}.crt", "tls.crt"), (f"{role}.key", "tls.key")):
                shutil.copy(work / source, directory / role / target)
            (directory / role / "token").write_text(token)
            for file in SECRET_FILES:
                (directory / role / file).chmod(0o600)


def _certificate(work: Path, file: str, name: str, section: str, *signer: str) -> None:
    """Create a key and a certificate for the common name `name`. `signer`: openssl's arguments for signing."""
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{file}.key")
    _run_openssl(work, "req", "-new", "-config", "settings", *new_key, "-subj", f"/CN={name}", "-out", f"{file}.csr")
    now = datetime.now(UTC)
    start, end = (f"{when:%Y%m%d%H%M%SZ}" for when in (now - _CLOCK_SKEW, now + _VALIDITY))
    times = ("-startdate", start, "-enddate", end)
    files = ("-in", f"{file}.csr", "-out", f"{file}.crt")
    _run_openssl(
        work, "ca", "-config", "settings", "-batch", "-notext", "-extensions", section, *times, *signer, *files
    )


def _run_openssl(work: Path, *words: str) -> None:
    """Run openssl in the folder `work`. Raises ConfigurationError if it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            ["openssl", *words],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE_S,
            check=False,
        )
    except FileNotFoundError as exc:
        raise ConfigurationError(
            "a run over several hosts needs `openssl` on this machine to create certificates, but PATH has no "
            "such program; install it (apt install openssl)"
        ) from exc
    except subprocess.TimeoutExpired as exc:
        raise ConfigurationError(f"openssl {words[0]} took longer than {_DEADLINE_S} s") from exc
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigurationError(f"openssl {words[0]} exited with {done.returncode}: {said}")
