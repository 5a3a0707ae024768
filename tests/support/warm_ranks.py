"""Modules that ranks of tests import, for the process from which they are forked: a rank then costs milliseconds.

`support.ranks` starts that process with its own `sys.path` in PYTHONPATH, as multiprocessing does not hand it on.
"""

import gc
import importlib
import os

for name in (
    *("encodings.idna", "grpc._channel", "grpc._interceptor", "grpc._server", "grpc.experimental", "ml_dtypes"),
    *("numpy.ma", "pytest", "ringtrain._core.transport.rpc", "ringtrain.elastic", "ringtrain.optim"),
    *("ringtrain.public", "support.certificates", "support.elastic_agent", "support.ranks"),
):
    importlib.import_module(name)
os.environ["PYTHONPATH"] = os.environ.pop("TESTS_PYTHONPATH", "")  # what ranks start finds modules as before
gc.freeze()  # ranks need not look through all this for garbage, nor copy the memory that it is in
