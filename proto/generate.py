"""Write worker_image/ringtrain/shared/gen from proto/: `python proto/generate.py`, called by `make generate`.

The output does not depend on the patch versions of grpcio-tools and protobuf: their version stamps and their
"runtime is older than the generator" guards are cut out. What the runtime needs is in its dependencies instead.
Cut out, too, are the classes of gRPC's experimental API, which nothing here calls.
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
    re.compile(r"^GRPC_GENERATED_VERSION(?:.|\n)*?(?=^class )", re.M),
    re.compile(r"^import warnings\n", re.M),
    # Calls without a channel, gRPC's experimental API.
    re.compile(r"\n\n # This class is part of an EXPERIMENTAL API\.\nclass (?:.*\n)(?:(?: .*)?\n)*", re.M),
)
# protoc names Python modules by the proto's path, which would be inside our own package `ringtrain`.
IMPORT = re.compile(r"^from ringtrain\.v1 import (\w+_pb2)", re.M)


def compile_protos(sources: list[Path], into: Path) -> None:
    """Run protoc on `sources`; raises SystemExit with its status when it fails."""
    include = str(files("grpc_tools") / "_proto")
    options = [f"-I{PROTO}", f"-I{include}", f"--python_out={into}", f"--grpc_python_out={into}"]
    status = protoc.main(["protoc", *options, *map(str, sources)])
    if status != 0:
        sys.exit(status)


def settle(text: str) -> str:
    """The generated `text` without version stamps, importing its siblings from `ringtrain.shared.gen`."""
    for pattern in CUT:
        text = pattern.sub("", text)
    return IMPORT.sub(r"from ringtrain.shared.gen import \1", text)


def main() -> None:
    """Replace the generated modules."""
    sources = sorted(PROTO.glob("ringtrain/v1/*.proto"))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for old in OUTPUT.glob("*_pb2*.py"):
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        compile_protos(sources, Path(scratch))
        for made in sorted(Path(scratch).rglob("*.py")):
            text = settle(made.read_text())
            if made.name.endswith("_pb2_grpc.py") and "class " not in text:
                continue
            (OUTPUT / made.name).write_text(text)
    (OUTPUT / "__init__.py").write_text('"""Generated from proto/ by `make generate`; not edited by hand."""\n')


if __name__ == "__main__":
    main()
