#!/usr/bin/env bash
# One run on several hosts: start this on each host, with the same values.
#   FIRST_HOST=10.0.0.1 HOSTS=2 PROCESSES=8 examples/cluster/several-hosts.sh run.yaml
set -euo pipefail
config=${1:?the config of the run}
shift

# NCCL and Gloo find the network by themselves. If hosts have several: NCCL_SOCKET_IFNAME=eth1 GLOO_SOCKET_IFNAME=eth1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=300 # else SIGKILL follows SIGTERM after 30 seconds
exec torchrun \
  --nnodes "${HOSTS:?}" \
  --nproc-per-node "${PROCESSES:?}" \
  --rdzv-backend c10d \
  --rdzv-endpoint "${FIRST_HOST:?}:${PORT:-29400}" \
  --rdzv-id "${RUN_ID:-surefit}" \
  -m surefit train "$config" "$@"
