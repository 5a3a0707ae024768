"""Number of values of each mpirun option, used to find the program that follows the options.

Names are without their dashes, one or two. Sources: `mpirun --help` of Open MPI 4.1, prterun(1) of Open MPI 5.0, and
`mpiexec -help` of MPICH 4.0.
"""

from ringtrain_mpi.implementation import MpiImplementation

NUMBER = frozenset({"n", "np", "c"})
# Options that set the number of processes indirectly.
PER_NODE = frozenset({"N", "npernode", "npersocket", "pernode", "ppr", "ppn", "perhost", "rr", "grr"})

_OPEN_MPI = {
    0: """allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot continuous d debug debug-daemons
        debug-daemons-file debug-devel disable-recovery display-allocation display-devel-allocation
        display-devel-map display-diffable-map display-map display-topo do-not-launch do-not-resolve
        enable-instant-on-support enable-recovery fwd-mpirun-port get-stack-traces
        index-argv-by-rank leave-session-attached merge-stderr-to-stdout nolocal nooversubscribe noprefix novm
        output-proctable oversubscribe pernode preload-binary q quiet report-bindings report-child-jobs-separately
        report-state-on-timeout s set-cwd-to-session-dir show-progress tag-output timestamp-output tv
        use-hwthread-cpus use-regexp v verbose xml""",
    1: """H N am app bind-to c cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile
        display forward-signals host hostfile launch-agent machinefile map-by max-restarts memory-per-rank n np
        npernode npersocket ompi-server output output-filename path personality pmixam ppr prefix preload-files
        prtemca-file rank-by rankfile report-events report-pid report-uri rf rtos runtime-options spawn-timeout
        stdin stream-buffering timeout tune wd wdir with-ft x xml-file xterm""",
    2: "gmca gomca gpmixmca gprtemca mca omca pmixmca prtemca",
}
_MPICH = {
    0: """disable-auto-cleanup disable-hostname-propagation disable-x enable-x envall envnone genvall genvnone info
        l pmi-port print-all-exitcodes profile skip-launch-node v verbose""",
    1: """bind-to configfile demux env-list envlist errfile errfile-pattern f genvlist gpus-per-proc host hostfile
        hosts iface launcher launcher-exec localhost machinefile map-by membind n nameserver np order-nodes outfile
        outfile-pattern perhost ppn prepend-pattern rmk topolib usize wd wdir""",
    2: "env genv",
}
# Hydra reads `-prepend-rank` without a value.
_MPICH[0] += " prepend-rank"

# Source: `mpiexec.hydra -help` of Intel MPI 2021.19, in addition to MPICH's options.
_INTEL = {
    0: f"""{_MPICH[0]} V aps check_mpi cleanup debug gdb ilp64 mps nolocal ordered-output prepend-timestamp
        print-rank-map prot rr silent-abort trace tv version""",
    1: f"""{_MPICH[1]} bootstrap bootstrap-exec branch-count cpu-bind envexcl gdb-args genvexcl grr gtool gtoolfile
        hosts-group machine path s tmpdir tune""",
    2: _MPICH[2],
}

VALUES: dict[MpiImplementation, dict[str, int]] = {
    implementation: {name: count for count, names in table.items() for name in names.split()}
    for implementation, table in zip(MpiImplementation, (_OPEN_MPI, _MPICH, _INTEL), strict=True)
}
