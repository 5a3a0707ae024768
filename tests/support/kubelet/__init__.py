"""Nodes without machines: `Kubelet` binds pods and runs them, as local processes or by script.

`node.py` registers nodes and follows pods, `pod.py` lives one pod's life and posts its status, `runtimes.py` runs
it, `environment.py` resolves what its container sees, `serving.py` and
`execs.py` answer the API server, `relay.py` gives a
pod's ports an address of their own.
"""

from support.kubelet.node import Kubelet
from support.kubelet.runtimes import Exit, ProcessRuntime, ScriptedRuntime

__all__ = ["Exit", "Kubelet", "ProcessRuntime", "ScriptedRuntime"]
