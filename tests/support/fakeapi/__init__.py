"""A small Kubernetes API server in this process, for tests: `FakeApi` serves `Store` over HTTP.

`resources.py` says which kinds exist, `store.py` keeps objects and their history, `writes.py` holds the rules of a
write, `server.py` speaks HTTP, `faults.py` scripts what goes wrong. The contract suite
(tests/integration/operator/test_api_contract.py) holds it to what a real kube-apiserver does.
"""

from support.fakeapi.faults import Fault, FaultPlan
from support.fakeapi.server import FakeApi
from support.fakeapi.store import Store

__all__ = ["FakeApi", "Fault", "FaultPlan", "Store"]
