complete -c pegasus-mpi-cluster -s o -l stdout -d 'Path to stdout file for tasks' -r
complete -c pegasus-mpi-cluster -s e -l stderr -d 'Path to stderr file for tasks' -r
complete -c pegasus-mpi-cluster -s m -l max-failures -d 'Stop submitting tasks after N tasks have failed' -r
complete -c pegasus-mpi-cluster -s t -l tries -d 'Try tasks N times before marking them failed' -r
complete -c pegasus-mpi-cluster -s r -l rescue -d 'Path to rescue log [default: DAGFILE.rescue]' -r
complete -c pegasus-mpi-cluster -l host-script -d 'Path to script that will be launched on each host' -r
complete -c pegasus-mpi-cluster -l host-memory -d 'Amount of memory per host in MB' -r
complete -c pegasus-mpi-cluster -l host-cpus -d 'Number of CPUs per host' -r
complete -c pegasus-mpi-cluster -l max-wall-time -d 'Maximum wall time of the job in minutes' -r
complete -c pegasus-mpi-cluster -l maxfds -d 'Maximum cached file descriptors' -r
complete -c pegasus-mpi-cluster -l workers -d 'Number of workers without an MPI launcher [default: one per CPU]' -r
complete -c pegasus-mpi-cluster -l host-name -d 'Name of this host; workers with the same name share its memory and CPUs' -r
complete -c pegasus-mpi-cluster -l host-gpus -d 'Number of GPUs per host' -r
complete -c pegasus-mpi-cluster -l runtime-limit -d 'Time limit of each task without an option -T of its own' -r
complete -c pegasus-mpi-cluster -l drain-grace -d 'Time that running tasks have after SIGTERM [default: 8]' -r
complete -c pegasus-mpi-cluster -l stop-grace -d 'Ask tasks to end this long before the wall time is over [default: 0; 10 with job:T]' -r
complete -c pegasus-mpi-cluster -l more-memory -d 'Let tasks request FACTOR times their memory after running out of it [default: 1]' -r
complete -c pegasus-mpi-cluster -l retry-delay -d 'Wait before a retry; each wait is FACTOR times the last [default: 0; transfers 2,2,60]' -r
complete -c pegasus-mpi-cluster -l disk-reserve -d 'Start no tasks while the disk has less free space; 0: no check [default: 8]' -r
complete -c pegasus-mpi-cluster -l forward-limit -d 'Fail tasks that forward more through their pipes; 0: no limit [default: 1024]' -r
complete -c pegasus-mpi-cluster -l max-jobs -d 'Run at most N tasks of a category at a time; may be repeated' -r
complete -c pegasus-mpi-cluster -l max-plans -d 'Plan at most N sub-workflows at a time [default: 4]' -r
complete -c pegasus-mpi-cluster -l sync-interval -d 'Sync rescue file and forwarded data to disk this often; 0: never [default: 1000]' -r
complete -c pegasus-mpi-cluster -l agents -d 'Run tasks in this number of agents, or one on each host of n[1-4,7],x or of the gang' -r
complete -c pegasus-mpi-cluster -l launch -d 'Start agents: local, ssh, srun, pbsdsh, mpiexec, flux, blaunch, pmc-rsh or a command' -r
complete -c pegasus-mpi-cluster -l slots -d 'Tasks of an agent at a time' -r
complete -c pegasus-mpi-cluster -l agent-timeout -d 'An agent that is silent for this time is lost [default: 30]' -r
complete -c pegasus-mpi-cluster -l listen -d 'Where the master of agents listens [default: all addresses]' -r
complete -c pegasus-mpi-cluster -l start-with -d 'Start with the first task when N agents are there [default: 1]' -r
complete -c pegasus-mpi-cluster -l crash-limit -d 'A task has failed if N agents were lost while it ran; 0: no limit [default: 5]' -r
complete -c pegasus-mpi-cluster -l bad-host-limit -d 'Set a host aside on which N tasks in a row failed that succeed elsewhere [default: 3]' -r
complete -c pegasus-mpi-cluster -l master-timeout -d 'Time that agents wait for another master if theirs has died [default: 600]' -r
complete -c pegasus-mpi-cluster -l join-timeout -d 'Time for agents and master to find each other [default: 300]' -r
complete -c pegasus-mpi-cluster -s h -l help -d 'Print this message'
complete -c pegasus-mpi-cluster -s V -l version -d 'Print version information'
complete -c pegasus-mpi-cluster -s v -l verbose -d 'Increase logging level'
complete -c pegasus-mpi-cluster -s q -l quiet -d 'Decrease logging level'
complete -c pegasus-mpi-cluster -s s -l skip-rescue -d 'Ignore existing rescue file (still creates one)'
complete -c pegasus-mpi-cluster -s n -l nolock -d 'Do not try to lock DAGFILE'
complete -c pegasus-mpi-cluster -l strict-limits -d 'Enforce strict task resource limits'
complete -c pegasus-mpi-cluster -l per-task-stdio -d 'Write each task\'s stdout/stderr to a different file'
complete -c pegasus-mpi-cluster -l jobstate-log -d 'Generate jobstate.log'
complete -c pegasus-mpi-cluster -l monitord-hack -d 'Generate a .dagman.out file to trick monitord'
complete -c pegasus-mpi-cluster -l no-resource-log -d 'Do not generate a log of resource usage'
complete -c pegasus-mpi-cluster -l no-sleep-on-recv -d 'Do not sleep on message receive'
complete -c pegasus-mpi-cluster -l keep-affinity -d 'Keep inherited CPU and memory affinity'
complete -c pegasus-mpi-cluster -l set-affinity -d 'Set CPU affinity for multicore tasks'
complete -c pegasus-mpi-cluster -l watch-memory -d 'End tasks whose processes use more memory than they request'
complete -c pegasus-mpi-cluster -l accept-incomplete -d 'Run the tasks that are there if the end of DAGFILE is missing'
complete -c pegasus-mpi-cluster -l packed-output -d 'Write the tasks\' stdout/stderr to a few files with indexes, in packed-output/'
complete -c pegasus-mpi-cluster -l stampede -d 'Write the STAMPEDE database during the run'
complete -c pegasus-mpi-cluster -l pmix -d 'Let tools that are written for PMIx find the run'
complete -c pegasus-mpi-cluster -l no-forward-journal -d 'Keep no journal of forwarded data; a crash may then duplicate or cut data'
complete -c pegasus-mpi-cluster -l agent -d 'Be an agent; the file is the endpoint'
