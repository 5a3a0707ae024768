"""Check of DNS policies, because workers and data workers find the launcher by a DNS name of the cluster."""

import re
from collections.abc import Iterator

from ..errors import Problem
from .job import JobSpec
from .reserved import templates_of

# Search domain of a namespace's Services: <namespace>.svc.<domain of the cluster>.
_OF_SERVICES = re.compile(r"[a-z0-9-]+\.svc(\.|$)")
_WAYS = "leave it out, or write ClusterFirst"


def dns_policy_problems(spec: JobSpec) -> Iterator[Problem]:
    """Yield a problem for each DNS policy with which a pod could not find the launcher."""
    for field, template in templates_of(spec).items():
        pod = template.get("spec") or {}
        policy, path = pod.get("dnsPolicy"), f"spec.{field}.spec.dnsPolicy"
        if not field.startswith(("worker.", "dataWorkers.")):
            continue
        if policy == "Default":
            yield Problem(path, f"is 'Default': the node's DNS does not know the launcher's name; {_WAYS}")
        searched = (pod.get("dnsConfig") or {}).get("searches") or ()
        if policy == "None" and not any(_OF_SERVICES.match(str(domain)) for domain in searched):
            yield Problem(
                path,
                "is 'None', and dnsConfig.searches has no <namespace>.svc.<domain of the cluster>, which the "
                f"launcher's name needs; add it, or {_WAYS}",
            )
