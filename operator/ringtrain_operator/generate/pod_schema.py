"""`python -m ringtrain_operator.generate.pod_schema VERSION < OPENAPI`: write spec/pod_schema.json.

OPENAPI is the output of `kubectl get --raw /openapi/v3/api/v1`, VERSION the server's version, such as 1.36.
"""

import json
import sys
from pathlib import Path

from .. import spec
from ..spec.pod_schema import PodSchema, dump_pod_spec_schema


def main() -> None:
    """Read an OpenAPI document from standard input and write its schema of pods into the package."""
    schema = PodSchema.from_openapi(json.load(sys.stdin), sys.argv[1])
    target = Path(spec.__file__).with_name("pod_schema.json")
    target.write_text(dump_pod_spec_schema(schema), encoding="utf-8")


if __name__ == "__main__":
    main()
