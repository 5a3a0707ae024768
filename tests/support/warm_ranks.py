"""Modules that ranks of tests import, for the process from which they are forked: a rank then costs milliseconds.

`support.ranks` starts that process with its own `sys.path` in PYTHONPATH, as multiprocessing does not hand it on.
"""

import encodings.idna  # noqa: F401
import gc
import os

import grpc._channel
import grpc._interceptor
import grpc._server
import grpc.experimental  # noqa: F401
import ml_dtypes  # noqa: F401
import numpy.ma  # noqa: F401
import pytest  # noqa: F401

import ringtrain._core.transport.rpc
import ringtrain.elastic
import ringtrain.optim
import ringtrain.public  # noqa: F401
import support.certificates
import support.elastic_agent
import support.ranks  # noqa: F401

os.environ["PYTHONPATH"] = os.environ.pop("TESTS_PYTHONPATH", "")  # what ranks start finds modules as before
gc.freeze()  # ranks need not look through all this for garbage, nor copy the memory that it is in
