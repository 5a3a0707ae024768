#!/bin/bash
# `make e2e`: the black-box tests on the cluster of KUBECONFIG, or on a kind cluster made here and removed again.
# E2E_NODE_IMAGE picks kind's node image. With an own cluster, push the images first and set E2E_OPERATOR_IMAGE,
# E2E_AGENT_IMAGE and E2E_WORKER_IMAGE (repository:tag). E2E_RUN is a command to run there instead of the tests.
# Images of others, for tests that are skipped without them or pull a public one: E2E_BARE_IMAGE (a shell and nothing
# else; busybox), E2E_MPI_IMAGE (mpi.Dockerfile), E2E_S3_IMAGE (moto's server on port 5000; motoserver/moto).
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${VENV:-.venv}/bin
operator=${E2E_OPERATOR_IMAGE:-ghcr.io/ringtrain/operator:e2e}
worker=${E2E_WORKER_IMAGE:-ghcr.io/ringtrain/worker:e2e}
agent=${E2E_AGENT_IMAGE:-ghcr.io/ringtrain/agent:e2e}
cluster=ringtrain-e2e

need() { command -v "$1" >/dev/null || { echo "make e2e needs $1: $2" >&2; exit 2; }; }
need kubectl "https://kubernetes.io/docs/tasks/tools/"

if [ -z "${KUBECONFIG:-}" ]; then
  need docker "set KUBECONFIG to use a cluster that you have"
  need kind "https://kind.sigs.k8s.io, or set KUBECONFIG to use a cluster that you have"
  KUBECONFIG=$(mktemp); export KUBECONFIG
  cleanup() { kind delete cluster --name "$cluster" || true; rm -f "$KUBECONFIG"; }
  trap cleanup EXIT
  kind create cluster --name "$cluster" --wait 120s --config tests/e2e/kind.yaml \
    ${E2E_NODE_IMAGE:+--image "$E2E_NODE_IMAGE"}
  docker build --target operator --tag "$operator" .
  docker build --target worker --tag "$worker" .
  docker build --target agent --tag "$agent" .
  export E2E_MPI_IMAGE=${E2E_MPI_IMAGE:-ringtrain-e2e-mpi:1}
  docker build --file tests/e2e/mpi.Dockerfile --tag "$E2E_MPI_IMAGE" .
  kind load docker-image --name "$cluster" "$operator" "$worker" "$agent" "$E2E_MPI_IMAGE"
fi

collect() {
  kubectl get dtj,pods,events --all-namespaces || true
  kubectl --namespace ringtrain-system logs --selector app.kubernetes.io/name=ringtrain-operator --tail=300 || true
}
"$bin/helm" upgrade --install ringtrain charts/ringtrain-operator --namespace ringtrain-system --create-namespace \
  --set image.registry= --set "image.repository=${operator%:*}" --set "image.tag=${operator##*:}" \
  --set "agent.image.repository=${agent%:*}" --set "agent.image.tag=${agent##*:}" --wait --timeout 5m || { collect; exit 1; }
RINGTRAIN_E2E=1 RINGTRAIN_WORKER_IMAGE=$worker ${E2E_RUN:-"$bin/pytest" tests/e2e -v} "$@" || { collect; exit 1; }
