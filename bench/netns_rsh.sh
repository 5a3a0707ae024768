#!/bin/sh
# What mpirun is told to use in place of ssh: the host 10.77.0.<h + 1> is the network namespace rtb<h> of this machine.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
namespace=rtb$((${host##*.} - 1))
exec ip netns exec "$namespace" unshare --uts sh -c "hostname $namespace; $*"
