"""Write worker_image/ringtrain/shared/gen from proto/: `python proto/generate.py`, called by `make generate`.

The output does not depend on the patch versions of grpcio-tools and protobuf: their version stamps and their
"runtime is older than the generator" guards are cut out. What the runtime needs is in its dependencies instead.
Clients and servers of the services are made from the descriptors (ringtrain/shared/rpc.py).
"""

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
OUTPUT = ROOT / "worker_image" / "ringtrain" / "shared" / "gen"

CUT = (
    re.compile(r"^# Protobuf Python Version: .*\n", re.M),
    re.compile(r"^from google\.protobuf import runtime_version.*\n", re.M),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\((?:.|\n)*?^\)\n", re.M),
)


def compile_protos(sources: list[Path], into: Path) -> None:
    """Run protoc on `sources`; raises SystemExit with its status when it fails."""
    include = str(files("grpc_tools") / "_proto")
    options = [f"-I{PROTO}", f"-I{include}", f"--python_out={into}"]
    status = protoc.main(["protoc", *options, *map(str, sources)])
    if status != 0:
        sys.exit(status)


def settle(text: str) -> str:
    """The generated `text` without version stamps."""
    for pattern in CUT:
        text = pattern.sub("", text)
    return text


def main() -> None:
    """Replace the generated modules."""
    sources = sorted(PROTO.glob("ringtrain/v1/*.proto"))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for old in OUTPUT.glob("*_pb2*.py"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        compile_protos(sources, Path(scratch))
        for made in sorted(Path(scratch).rglob("*.py")):
            (OUTPUT / made.name).write_text(settle(made.read_text()))
    (OUTPUT / "__init__.py").write_text('"""Generated from proto/ by `make generate`; not edited by hand."""\n')


if __name__ == "__main__":
    main()
